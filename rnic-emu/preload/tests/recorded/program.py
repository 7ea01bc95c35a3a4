"""Makes, uses and destroys verbs objects in known numbers, then waits until it may end.

    program.py FOLDER     writes its process number to FOLDER/ready, and ends once FOLDER/go exists
"""

import os
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

folder = sys.argv[1]
ctx = Context(name="emu0")
pds = [PD(ctx) for _ in range(3)]
access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
for size in (100, 5000, 70000):
    for _ in range(7):
        MR(pds[0], size, access).close()
mr = MR(pds[0], 8192, access)
cqs = [CQ(ctx, 256) for _ in range(4)]
cqs.pop().close()
cap = QPCap(max_send_wr=64, max_recv_wr=64, max_send_sge=2, max_recv_sge=1)
qps = [QP(pds[0], QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cqs[0], rcq=cqs[1], cap=cap, sq_sig_all=0)) for _ in range(3)]
qps.pop().close()
gid = ctx.query_gid(1, 0)
for us, them in (qps, qps[::-1]):
    attr = QPAttr(port_num=1)
    attr.dest_qp_num = them.qp_num
    attr.path_mtu = e.IBV_MTU_1024
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
    attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
    attr.qp_access_flags = access
    attr.ah_attr = AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=0), is_global=1, port_num=1)
    us.to_rts(attr)

client, server = qps
for i in range(200):
    server.post_recv(RecvWR(wr_id=i, sg=[SGE(mr.buf, 1000, mr.lkey)], num_sge=1))
    signalled = e.IBV_SEND_SIGNALED if i % 2 else 0
    send = SendWR(wr_id=i, opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(mr.buf, 100 + i, mr.lkey)],
                  send_flags=signalled)
    client.post_send(send)
    write = SendWR(wr_id=i, opcode=e.IBV_WR_RDMA_WRITE, num_sge=2,
                   sg=[SGE(mr.buf, 8, mr.lkey), SGE(mr.buf + 64, 24, mr.lkey)])
    write.set_wr_rdma(mr.rkey, mr.buf + 4096)
    client.post_send(write)
    for cq, n in ((cqs[0], 2 if signalled else 1), (cqs[1], 1)):
        while n:
            n -= len(cq.poll(n)[1])
with open(os.path.join(folder, "ready.part"), "w") as f:
    f.write(str(os.getpid()))
os.rename(os.path.join(folder, "ready.part"), os.path.join(folder, "ready"))
while not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.01)
# The objects go with the process.
os._exit(0)
