use rnic_emu::model::*;
fn main(){
 let a: Vec<String> = std::env::args().collect();
 for s in validate::builtin().unwrap() { if s.id==a[1] { let p=s.profile().unwrap(); for pt in &s.points { let o=drive(&p,&pt.load).unwrap();
   println!("x={} mops={:.2} lat={:?} cpu={:.0}\n ini hits {:?} busy {:?}\n res hits {:?} busy {:?}\n br {:?}", pt.x,o.ops_per_s/1e6,o.latency_ns,o.cpu_ns_per_op,o.initiator.hits,o.initiator.busy,o.responder.hits,o.responder.busy, o.breakdown_ns.map(|v| v as i64)); } } }
}
