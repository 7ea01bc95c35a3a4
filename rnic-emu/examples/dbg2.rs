use rnic_emu::model::*;
fn main(){
 let p=Profile::builtin("cx5-like").unwrap();
 let spec=LoadSpec{threads:16,outstanding:256,inline:true,bytes:64,measure:3_000_000,..LoadSpec::default()};
 let t=std::time::Instant::now(); let o=drive(&p,&spec).unwrap(); println!("{:.2} M/s  {:.2} Mops modelled",3.0/t.elapsed().as_secs_f64(), o.ops_per_s/1e6);
}
