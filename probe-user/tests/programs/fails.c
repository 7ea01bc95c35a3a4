/*
 * Requests that fail in known ways, each on a pair of connected queue pairs of its own, and says of each what it was.
 *
 * fails classic|extended|extended-post|extended-poll CASE... [wait] [rxe]
 *
 * "wait" waits for a line of input after everything was made. "rxe" minds defects of that provider, as in posts.c. A line
 * of JSON for each case: the queue pair, number, status (or errno) and contents of the request that failed first.
 */
#include "device.h"
#include <unistd.h>

#define BYTES 4096

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr, *short_mr, *gone;
static char *memory;
static struct port port;
static int extended_post, extended_poll, rxe;

struct pair {
	const char *name;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
};

static void open_all(void)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

	context = open_device(&port);
	pd = ibv_alloc_pd(context);
	if (posix_memalign((void **)&memory, 4096, 16 * BYTES))
		die("no memory");
	mr = ibv_reg_mr(pd, memory, 16 * BYTES, access);
	short_mr = ibv_reg_mr(pd, memory, 100, access);
	gone = ibv_reg_mr(pd, memory + BYTES, BYTES, access);
	if (!mr || !short_mr || !gone)
		die("cannot register");
}

static void make(struct pair *p)
{
	int i, rnr = !strcmp(p->name, "rnr");

	if (extended_poll) {
		struct ibv_cq_init_attr_ex attr = { .cqe = 64 };
		struct ibv_cq_ex *ex = ibv_create_cq_ex(context, &attr);

		p->cq = ex ? ibv_cq_ex_to_cq(ex) : NULL;
	} else {
		p->cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	}
	for (i = 0; p->cq && i < 2; i++) {
		struct ibv_qp_init_attr_ex attr = {
			.send_cq = p->cq, .recv_cq = p->cq, .qp_type = IBV_QPT_RC, .pd = pd,
			.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2 },
			.comp_mask = IBV_QP_INIT_ATTR_PD | (extended_post ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
			.send_ops_flags = extended_post ? IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |
				IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD : 0,
		};

		p->qp[i] = ibv_create_qp_ex(context, &attr);
		if (!p->qp[i])
			die("cannot make a queue pair");
	}
	if (!p->cq)
		die("cannot make a completion queue");
	for (i = 0; i < 2; i++)
		connect_to(p->qp[i], p->qp[!i]->qp_num, &port,
			   IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
			   (struct patience){ .min_rnr_timer = 1, .timeout = 12, .retry_cnt = 1, .rnr_retry = rnr ? 0 : 7 });
}

/* Posts a chain of writes, reads, sends or atomics, each with one buffer. */
static int post(struct pair *p, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct ibv_qp_ex *ex;

	if (!extended_post)
		return ibv_post_send(p->qp[0], wr, bad);
	ex = ibv_qp_to_qp_ex(p->qp[0]);
	ibv_wr_start(ex);
	for (; wr; wr = wr->next) {
		ex->wr_id = wr->wr_id;
		ex->wr_flags = wr->send_flags;
		if (wr->opcode == IBV_WR_SEND)
			ibv_wr_send(ex);
		else if (wr->opcode == IBV_WR_RDMA_READ)
			ibv_wr_rdma_read(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		else if (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
			ibv_wr_atomic_fetch_add(ex, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, 1);
		else
			ibv_wr_rdma_write(ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
		ibv_wr_set_sge(ex, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
	}
	return ibv_wr_complete(ex);
}

/* A completion: the first with an error of a request is the one that is waited for; whatever follows is flushed. */
static void found(uint64_t wr_id, int status, int *first, uint64_t *first_id, int *flushed)
{
	if (!status)
		return;
	if (!*first && wr_id < 0x9000) {
		*first = status;
		*first_id = wr_id;
	} else {
		(*flushed)--;
	}
}

static uint64_t fail(struct pair *p, int *status, int flushed)
{
	uint64_t wr_id = 0;
	time_t end = time(NULL) + 60;

	*status = 0;
	while (!*status || flushed > 0) {
		if (time(NULL) > end)
			die("no completion");
		if (extended_poll) {
			struct ibv_cq_ex *ex = (struct ibv_cq_ex *)p->cq;
			struct ibv_poll_cq_attr attr = {};

			if (ibv_start_poll(ex, &attr))
				continue;
			do
				found(ex->wr_id, ex->status, status, &wr_id, &flushed);
			while (!ibv_next_poll(ex));
			if (!rxe)
				ibv_end_poll(ex);
		} else {
			struct ibv_wc wc;

			if (ibv_poll_cq(p->cq, 1, &wc) == 1)
				found(wc.wr_id, wc.status, status, &wr_id, &flushed);
		}
	}
	return wr_id;
}

static void tell(const char *name, struct pair *p, const char *what, int code, uint64_t wr_id, struct ibv_send_wr *wr,
		 int before)
{
	static const char *names[] = { "rdma_write", "rdma_write_with_imm", "send", "send_with_imm", "rdma_read", "atomic_cmp_and_swp",
				       "atomic_fetch_and_add" };
	int i, atomic = wr->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP, remote = wr->opcode != IBV_WR_SEND;
	uint64_t bytes = 0;

	for (i = 0; i < wr->num_sge; i++)
		bytes += wr->sg_list[i].length;
	printf("{\"case\": \"%s\", \"pid\": %d, \"qpn\": %u, \"what\": \"%s\", \"code\": %d, \"wr_id\": %lu, \"opcode\": \"%s\", "
	       "\"bytes\": %lu, \"addr\": %lu, \"lkey\": %u, \"before\": %d",
	       name, getpid(), p->qp[0]->qp_num, what, code, wr_id, names[wr->opcode], bytes, wr->sg_list[0].addr,
	       wr->sg_list[0].lkey, before);
	if (remote)
		printf(", \"remote_addr\": %lu, \"rkey\": %u", atomic ? wr->wr.atomic.remote_addr : wr->wr.rdma.remote_addr,
		       atomic ? wr->wr.atomic.rkey : wr->wr.rdma.rkey);
	printf("}\n");
	fflush(stdout);
}

static void run(struct pair *p, int number)
{
	struct ibv_send_wr wr[5], *bad = NULL;
	struct ibv_sge sge[5][3];
	const char *name = p->name;
	uint64_t wr_id, first = 0x100 * (number + 1);
	int i, n = 1, status, failing = 0, flushed = 0, before = 0;

	memset(wr, 0, sizeof(wr));
	for (i = 0; i < 5; i++) {
		sge[i][0] = sge[i][1] = sge[i][2] = (struct ibv_sge){ (uintptr_t)memory + 64 * i, 32 + number, mr->lkey };
		wr[i].wr_id = first + i;
		wr[i].sg_list = sge[i];
		wr[i].num_sge = 1;
		wr[i].opcode = IBV_WR_RDMA_WRITE;
		wr[i].send_flags = IBV_SEND_SIGNALED;
		wr[i].wr.rdma.remote_addr = (uintptr_t)memory + 8 * BYTES + 64 * i;
		wr[i].wr.rdma.rkey = mr->rkey;
	}
	if (!strcmp(name, "rkey")) {
		wr[0].wr.rdma.rkey ^= 0x00ffff00;
	} else if (!strcmp(name, "beyond")) {
		wr[0].wr.rdma.remote_addr = (uintptr_t)memory + 100 - 8;
		wr[0].wr.rdma.rkey = short_mr->rkey;
	} else if (!strcmp(name, "gone")) {
		wr[0].wr.rdma.remote_addr = (uintptr_t)memory + BYTES;
		wr[0].wr.rdma.rkey = gone->rkey;
		if (ibv_dereg_mr(gone))
			die("deregister");
	} else if (!strcmp(name, "lkey")) {
		sge[0][0].lkey ^= 0x00ffff00;
	} else if (!strcmp(name, "length")) {
		struct ibv_sge small = { (uintptr_t)memory + 4 * BYTES, 8, mr->lkey };
		struct ibv_recv_wr receive = { .wr_id = 0x9000, .sg_list = &small, .num_sge = 1 }, *bad_receive;

		wr[0].opcode = IBV_WR_SEND;
		if (ibv_post_recv(p->qp[1], &receive, &bad_receive))
			die("receive");
		flushed = 1;
	} else if (!strcmp(name, "rnr")) {
		wr[0].opcode = IBV_WR_SEND;
	} else if (!strcmp(name, "retry")) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

		wr[0].opcode = IBV_WR_RDMA_READ;
		if (ibv_modify_qp(p->qp[1], &attr, IBV_QP_STATE))
			die("RESET");
	} else if (!strcmp(name, "atomic")) {
		sge[0][0].length = 8;
		wr[0].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr[0].wr.atomic.remote_addr = (uintptr_t)memory + 8 * BYTES;
		wr[0].wr.atomic.compare_add = 1;
		wr[0].wr.atomic.rkey = mr->rkey ^ 0x00ffff00;
	} else if (!strcmp(name, "list")) {
		/* The middle one of three that are signalled. */
		n = 3;
		failing = 1;
		wr[1].wr.rdma.rkey ^= 0x00ffff00;
		flushed = 1;
	} else if (!strcmp(name, "unsignalled")) {
		/* Two that succeed and one that fails, none of them signalled, before one that is. */
		n = 4;
		wr[0].send_flags = wr[1].send_flags = wr[2].send_flags = 0;
		wr[2].wr.rdma.rkey ^= 0x00ffff00;
		failing = 3;
		before = 3;
		flushed = 1;
	} else if (!strcmp(name, "refused")) {
		/* The third of five has more entries than the queue pair allows. */
		n = 5;
		wr[2].num_sge = 3;
		wr[0].send_flags = wr[1].send_flags = 0;
	} else {
		die(name);
	}
	for (i = 0; i + 1 < n; i++)
		wr[i].next = &wr[i + 1];
	errno = strcmp(name, "refused") ? post(p, wr, &bad) : ibv_post_send(p->qp[0], wr, &bad);
	if (!strcmp(name, "refused")) {
		if (!errno)
			die("not refused");
		tell(name, p, "post", errno, bad->wr_id, bad, bad - wr);
		return;
	}
	if (errno)
		die("post");
	wr_id = fail(p, &status, flushed);
	tell(name, p, "cqe", status, wr_id, &wr[failing], before);
}

int main(int argc, char **argv)
{
	struct pair pairs[16];
	int i, n = 0, waits = 0;
	char line[16];

	extended_post = argc > 1 && (!strcmp(argv[1], "extended") || !strcmp(argv[1], "extended-post"));
	extended_poll = argc > 1 && (!strcmp(argv[1], "extended") || !strcmp(argv[1], "extended-poll"));
	for (i = 2; i < argc; i++) {
		if (!strcmp(argv[i], "wait"))
			waits = 1;
		else if (!strcmp(argv[i], "rxe"))
			rxe = 1;
		else if (n < 16)
			pairs[n++].name = argv[i];
	}
	open_all();
	if (waits) {
		printf("ready\n");
		fflush(stdout);
		if (!fgets(line, sizeof(line), stdin))
			return 1;
	}
	/* Of queue pairs that are seen being made, it is known that nothing was under way before. */
	for (i = 0; i < n; i++)
		make(&pairs[i]);
	for (i = 0; i < n; i++)
		run(&pairs[i], i);
	return 0;
}
