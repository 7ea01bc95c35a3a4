//! Requests to another process: written to its ring, in chunks, as far as there is room.

use super::local::{count_sent, header, payload};
use super::requester::{Step, takes_rd_slot};
use crate::abi::consts::*;
use crate::object::qp::Requester;
use crate::object::qp_table::index_of;
use crate::object::send_queue::SendWqe;
use crate::wire::out_link::OutLink;
use crate::wire::packet::{CHUNK, Packet};

/// Writes request `counter`, or as much of it as fits.
pub fn transmit(r: &mut Requester, counter: u64, wqe: &SendWqe, link: &'static OutLink) -> Step {
    let packet = header(r, wqe);
    let mut part = r.queue.part;
    let mut broken = false;
    let mut complete = false;
    {
        let ours = if takes_rd_slot(wqe.opcode) { None } else { payload(r, counter, wqe) };
        if ours.is_none() && !takes_rd_slot(wqe.opcode) {
            return Step::Failed(IBV_WC_LOC_PROT_ERR);
        }
        let mut guard = link.send.lock();
        let Some(sending) = guard.as_mut() else { return Step::Lost };
        let mut announced = false;
        loop {
            let len = (packet.len - part).min(CHUNK);
            let record = Packet { offset: part, len, ..packet };
            let pushed = sending.push(&record, |at| {
                if let Some(ours) = &ours {
                    // SAFETY: push gives room for `len` bytes.
                    unsafe { ours.copy_out(part as usize, at, len as usize) };
                }
            });
            match pushed {
                Ok(true) => {
                    // Not before it has room: a request that waits for it comes here many times.
                    if part == 0 {
                        count_sent(r, wqe, packet.len);
                    }
                    part += len;
                    complete = part >= packet.len;
                    if complete {
                        break;
                    }
                    // The responder copies this chunk out while we copy the next one in.
                    sending_publish(r, link, sending);
                }
                Ok(false) if announced => break,
                Ok(false) => {
                    // Announce that we wait before looking once more: the responder may just have made room.
                    sending_publish(r, link, sending);
                    link.wait_for_room(index_of(r.fixed.qpn) as u16);
                    announced = true;
                }
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        if !broken {
            sending_publish(r, link, sending);
        }
    }
    if broken {
        link.condemn(r.fixed.process);
        return Step::Lost;
    }
    r.queue.part = if complete { 0 } else { part };
    if complete { Step::Sent } else { Step::Stop }
}

fn sending_publish(r: &Requester, link: &OutLink, sending: &mut crate::wire::out_link::Sending) {
    link.publish(r.fixed.process, sending);
}
