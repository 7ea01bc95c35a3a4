/*
 * Queue pairs of one process that complete into one extended completion queue and number all their requests alike.
 *
 * shares late|many|failed QPS ROUNDS [named] [wait]
 *
 * late: in each round the first queue pair sends 64 bytes while its peer has no receive, the second writes 4096 bytes,
 *       whose completion is reaped, then 2 ms pass and the receive is posted: what was posted first completes last. The
 *       receive has the same number as well.
 * many: in each round every queue pair writes 1 << (its number modulo 12) bytes; then all completions are reaped.
 * failed: in each round the second queue pair writes with a key that is refused, and both write before it.
 *
 * "named" makes the completion queue with what reads the QP number; the program itself does not need it. "wait" waits for
 * a line of input after everything was made. It prints what it did, of each queue pair its number and requests, and for
 * how long at least what came late took, and at most what came early.
 */
#include "device.h"
#include <unistd.h>

#define MOST 256
#define BYTES 4096
#define NUMBER 1

static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq_ex *cq;
static struct ibv_qp *qp[MOST];
static unsigned long wrs[MOST], reaped, failed, late_least_ns, early_most_ns;
static char *memory;
static int qps;

static void make(int named)
{
	struct port port;
	struct ibv_context *context = open_device(&port);
	struct ibv_cq_init_attr_ex attr = { .cqe = 1024, .wc_flags = named ? IBV_WC_STANDARD_FLAGS : 0 };
	int i;

	pd = ibv_alloc_pd(context);
	if (posix_memalign((void **)&memory, 4096, 2 * BYTES) ||
	    !(mr = ibv_reg_mr(pd, memory, 2 * BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)))
		die("no memory");
	cq = ibv_create_cq_ex(context, &attr);
	if (!cq)
		die("cannot make a completion queue");
	for (i = 0; i < qps; i++) {
		struct ibv_qp_init_attr make = {
			.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
		};

		qp[i] = ibv_create_qp(pd, &make);
		if (!qp[i])
			die("cannot make a queue pair");
	}
	/* Neighbours are connected. */
	for (i = 0; i < qps; i++)
		connect_to(qp[i], qp[i ^ 1]->qp_num, &port, IBV_ACCESS_REMOTE_WRITE, PATIENT);
}

static void post(int from, int opcode, int bytes, int refused)
{
	struct ibv_sge sge = { (uintptr_t)memory, bytes, mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = NUMBER, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)memory + BYTES, refused ? 0xbad : mr->rkey },
	};

	errno = ibv_post_send(qp[from], &wr, &bad);
	if (errno)
		die("post");
	wrs[from]++;
}

static void receive(int at)
{
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = NUMBER, .sg_list = &sge, .num_sge = 1 };

	errno = ibv_post_recv(qp[at], &wr, &bad);
	if (errno)
		die("receive");
}

/* Reaps so many completions. */
static void reap(int n)
{
	struct ibv_poll_cq_attr attr = {};

	while (n > 0) {
		if (ibv_start_poll(cq, &attr))
			continue;
		do {
			n--;
			reaped += cq->status == IBV_WC_SUCCESS;
			failed += cq->status != IBV_WC_SUCCESS;
		} while (!ibv_next_poll(cq));
		ibv_end_poll(cq);
	}
}

int main(int argc, char **argv)
{
	int rounds, i, named = 0, waits = 0;
	char line[16];

	if (argc < 4 || (qps = atoi(argv[2])) < 2 || qps > MOST || qps % 2)
		return 2;
	rounds = atoi(argv[3]);
	for (i = 4; i < argc; i++) {
		named |= !strcmp(argv[i], "named");
		waits |= !strcmp(argv[i], "wait");
	}
	make(named);
	if (waits) {
		printf("ready\n");
		fflush(stdout);
		if (!fgets(line, sizeof(line), stdin))
			return 1;
	}
	while (rounds--) {
		if (!strcmp(argv[1], "late")) {
			unsigned long late, early;

			post(0, IBV_WR_SEND, 64, 0);
			late = early = now();
			post(1, IBV_WR_RDMA_WRITE, 4096, 0);
			reap(1);
			early_most_ns += now() - early;
			usleep(2000);
			receive(1);
			late_least_ns += now() - late;
			reap(2);
		} else if (!strcmp(argv[1], "many")) {
			for (i = 0; i < qps; i++)
				post(i, IBV_WR_RDMA_WRITE, 1 << i % 12, 0);
			reap(qps);
		} else {
			post(0, IBV_WR_RDMA_WRITE, 64, 0);
			post(1, IBV_WR_RDMA_WRITE, 64, 0);
			reap(2);
			post(1, IBV_WR_RDMA_WRITE, 64, 1);
			reap(1);
		}
	}
	printf("{\"pid\": %d, \"reaped\": %lu, \"failed\": %lu, \"late_least_ns\": %lu, \"early_most_ns\": %lu, \"qps\": [",
	       getpid(), reaped, failed, late_least_ns, early_most_ns);
	for (i = 0; i < qps; i++)
		printf("%s{\"number\": %u, \"wrs\": %lu}", i ? ", " : "", qp[i]->qp_num, wrs[i]);
	printf("]}\n");
	return 0;
}
