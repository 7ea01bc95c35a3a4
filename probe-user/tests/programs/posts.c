/*
 * Posts and polls in every way there is, over two connected queue pairs of one process, and prints what it did.
 *
 * posts classic|extended|extended-post|extended-poll ROUNDS [fork] [wait] [rxe] [both]
 *
 * "both" has the other queue pair send as well, at the same time: writes alone, with other numbers.
 * "extended-post" posts by ibv_wr_* and polls by ibv_poll_cq, "extended-poll" the other way round.
 * A round: receives in a chain, sends in a chain of several kinds, lists of several lengths, signalled and inline ones.
 * At the end a chain longer than the queue, of which the provider takes what fits. "wait" waits for a line of input
 * after everything was made; with "fork" a child does the same on its own device context. "rxe" minds a defect of
 * that provider (rdma-core 44): its next_poll, when there is nothing more, does what end_poll does, and an end_poll after
 * it goes on behind the last entry.
 *
 * Of the time from post to reap it says what it must be at least (from the return of the post to the call of the poll) and
 * at most (from the call of the post to the return of the poll), summed up over signalled requests.
 */
#include "device.h"
#include <sys/wait.h>
#include <unistd.h>

#define DEPTH 64
#define BYTES 4096
/* Added to the numbers of the other queue pair's requests. */
#define OTHER 1000

static struct {
	unsigned long post_calls, post_failed, wrs, signalled, inlined, bytes, sges;
	unsigned long recv_calls, recv_failed, recv_wrs, polls, empty, cqes, notifies, aborted, errno_of_last;
	unsigned long reaped, least_ns, most_ns;
} did;

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp[2];
static char *memory;
static int extended_post, extended_poll, rxe, both;
static unsigned long post_begins[2], post_ends[2];

/* A completion was found by a poll, or a step of it, of that time. Returns whether it is one of the sending side. */
static int reaped(uint64_t wr_id, unsigned long begins, unsigned long ends)
{
	int from = wr_id > OTHER;

	if (!wr_id)
		return 0;
	did.reaped++;
	did.least_ns += begins > post_ends[from] ? begins - post_ends[from] : 0;
	did.most_ns += ends - post_begins[from];
	return 1;
}

static void make(void)
{
	struct port port;
	int i;

	context = open_device(&port);
	pd = ibv_alloc_pd(context);
	if (posix_memalign((void **)&memory, 4096, 16 * BYTES))
		die("no memory");
	mr = ibv_reg_mr(pd, memory, 16 * BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!mr)
		die("cannot register");
	if (extended_poll) {
		struct ibv_cq_init_attr_ex attr = { .cqe = 4 * DEPTH };
		struct ibv_cq_ex *ex = ibv_create_cq_ex(context, &attr);

		cq = ex ? ibv_cq_ex_to_cq(ex) : NULL;
	} else {
		cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
	}
	if (!cq)
		die("cannot make a completion queue");
	for (i = 0; i < 2; i++) {
		struct ibv_qp_init_attr_ex attr = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
			.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 3, .max_recv_sge = 3,
				 .max_inline_data = 64 },
			.comp_mask = IBV_QP_INIT_ATTR_PD | (extended_post ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
			.send_ops_flags = extended_post ? IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ : 0,
		};

		qp[i] = ibv_create_qp_ex(context, &attr);
		if (!qp[i])
			die("cannot make a queue pair");
	}
	for (i = 0; i < 2; i++)
		connect_to(qp[i], qp[!i]->qp_num, &port, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, PATIENT);
}

static void receive(int n)
{
	struct ibv_recv_wr wr[2 * DEPTH], *bad;
	struct ibv_sge sge = { (uintptr_t)memory + 8 * BYTES, 1024, mr->lkey };
	int i, result, posted = n;

	memset(wr, 0, sizeof(wr));
	for (i = 0; i < n; i++) {
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].sg_list = &sge;
		wr[i].num_sge = 1;
	}
	result = ibv_post_recv(qp[1], wr, &bad);
	did.recv_calls++;
	if (result) {
		did.recv_failed++;
		posted = bad - wr;
	}
	did.recv_wrs += posted;
}

/* Takes what is there; returns how many of them were of the sending side. */
static int poll(void)
{
	unsigned long begins = now(), ends;
	int n, i, sent = 0;

	did.polls++;
	if (extended_poll) {
		struct ibv_cq_ex *ex = (struct ibv_cq_ex *)cq;
		struct ibv_poll_cq_attr attr = {};

		if (ibv_start_poll(ex, &attr)) {
			did.empty++;
			return 0;
		}
		do {
			ends = now();
			did.cqes++;
			sent += reaped(ex->wr_id, begins, ends);
			begins = now();
		} while (!ibv_next_poll(ex));
		if (!rxe)
			ibv_end_poll(ex);
		return sent;
	}
	struct ibv_wc wc[20];

	n = ibv_poll_cq(cq, 20, wc);
	ends = now();
	if (n < 0)
		die("poll");
	did.empty += n == 0;
	did.cqes += n;
	for (i = 0; i < n; i++)
		sent += reaped(wc[i].wr_id, begins, ends);
	return sent;
}

/* A chain of n requests of a queue pair, every fourth and the last one signalled. Returns how many signalled ones were posted. */
static int send_chain(int from, int n, int must_fit)
{
	static struct ibv_send_wr wr[4 * DEPTH];
	static struct ibv_sge sge[4 * DEPTH][3];
	struct ibv_send_wr *bad = NULL;
	int i, j, result, posted = n, signalled = 0;

	memset(wr, 0, sizeof(wr));
	for (i = 0; i < n; i++) {
		int inlined = i % 5 == 1 && !(rxe && extended_post), lists = i % 3 + 1, length = inlined ? 16 : 100 + i;

		for (j = 0; j < lists; j++)
			sge[i][j] = (struct ibv_sge){ (uintptr_t)memory + 256 * j, length, mr->lkey };
		wr[i].wr_id = from * OTHER + i + 1;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].sg_list = sge[i];
		wr[i].num_sge = lists;
		wr[i].opcode = i % 2 && !from ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
		wr[i].send_flags = (i % 4 == 3 || i + 1 == n ? IBV_SEND_SIGNALED : 0) | (inlined ? IBV_SEND_INLINE : 0);
		wr[i].wr.rdma.remote_addr = (uintptr_t)memory + 12 * BYTES;
		wr[i].wr.rdma.rkey = mr->rkey;
	}
	did.post_calls++;
	post_begins[from] = now();
	if (extended_post) {
		struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp[from]);

		ibv_wr_start(ex);
		for (i = 0; i < n; i++) {
			struct ibv_data_buf list[3];

			ex->wr_id = wr[i].wr_id;
			ex->wr_flags = wr[i].send_flags & IBV_SEND_SIGNALED;
			if (wr[i].opcode == IBV_WR_SEND)
				ibv_wr_send(ex);
			else
				ibv_wr_rdma_write(ex, wr[i].wr.rdma.rkey, wr[i].wr.rdma.remote_addr);
			for (j = 0; j < wr[i].num_sge; j++)
				list[j] = (struct ibv_data_buf){ (void *)(uintptr_t)sge[i][j].addr, sge[i][j].length };
			if (wr[i].send_flags & IBV_SEND_INLINE && wr[i].num_sge == 1)
				ibv_wr_set_inline_data(ex, list[0].addr, list[0].length);
			else if (wr[i].send_flags & IBV_SEND_INLINE)
				ibv_wr_set_inline_data_list(ex, wr[i].num_sge, list);
			else if (wr[i].num_sge == 1)
				ibv_wr_set_sge(ex, sge[i][0].lkey, sge[i][0].addr, sge[i][0].length);
			else
				ibv_wr_set_sge_list(ex, wr[i].num_sge, sge[i]);
		}
		result = ibv_wr_complete(ex);
		if (result)
			posted = 0;
	} else {
		result = ibv_post_send(qp[from], wr, &bad);
		if (result)
			posted = bad - wr;
	}
	post_ends[from] = now();
	if (result) {
		did.post_failed++;
		did.errno_of_last = result;
	}
	if (must_fit && result) {
		errno = result;
		die("post");
	}
	for (i = 0; i < posted; i++) {
		did.wrs++;
		signalled += !!(wr[i].send_flags & IBV_SEND_SIGNALED);
		did.inlined += !!(wr[i].send_flags & IBV_SEND_INLINE);
		did.sges += wr[i].num_sge;
		for (j = 0; j < wr[i].num_sge; j++)
			did.bytes += sge[i][j].length;
	}
	did.signalled += signalled;
	return signalled;
}

static void abandon(void)
{
	if (extended_post) {
		struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp[0]);

		ibv_wr_start(ex);
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(ex);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 8);
		ibv_wr_abort(ex);
		did.aborted++;
	}
}

static void tell(void)
{
	printf("{\"pid\": %d, \"post_calls\": %lu, \"post_failed\": %lu, \"wrs\": %lu, \"signalled\": %lu, \"inline\": %lu, "
	       "\"bytes\": %lu, \"sges\": %lu, \"recv_calls\": %lu, \"recv_failed\": %lu, \"recv_wrs\": %lu, \"polls\": %lu, "
	       "\"empty_polls\": %lu, \"cqes\": %lu, \"notifies\": %lu, \"aborted\": %lu, \"errno\": %lu, "
	       "\"reaped\": %lu, \"least_ns\": %lu, \"most_ns\": %lu}\n",
	       getpid(), did.post_calls, did.post_failed, did.wrs, did.signalled, did.inlined, did.bytes, did.sges,
	       did.recv_calls, did.recv_failed, did.recv_wrs, did.polls, did.empty, did.cqes, did.notifies, did.aborted,
	       did.errno_of_last, did.reaped, did.least_ns, did.most_ns);
	fflush(stdout);
}

static void work(int rounds)
{
	int r;

	for (r = 0; r < rounds; r++) {
		int n = r % 16 + 1, waiting;

		receive(n);
		waiting = send_chain(0, n, 1);
		if (both)
			waiting += send_chain(1, n, 1);
		while (waiting > 0)
			waiting -= poll();
	}
	if (ibv_req_notify_cq(cq, 0) == 0)
		did.notifies++;
	abandon();
	/* More than fits: the provider takes what does. */
	receive(2 * DEPTH);
	send_chain(0, 4 * DEPTH, 0);
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[2]) : 10, i, forks = 0, waits = 0;
	char line[16];

	extended_post = argc > 1 && (!strcmp(argv[1], "extended") || !strcmp(argv[1], "extended-post"));
	extended_poll = argc > 1 && (!strcmp(argv[1], "extended") || !strcmp(argv[1], "extended-poll"));
	for (i = 3; i < argc; i++) {
		forks |= !strcmp(argv[i], "fork");
		waits |= !strcmp(argv[i], "wait");
		rxe |= !strcmp(argv[i], "rxe");
		both |= !strcmp(argv[i], "both");
	}
	make();
	if (waits) {
		printf("ready\n");
		fflush(stdout);
		if (!fgets(line, sizeof(line), stdin))
			return 1;
	}
	work(rounds);
	tell();
	if (forks) {
		pid_t child = fork();
		int status;

		if (child == 0) {
			memset(&did, 0, sizeof(did));
			make();
			work(rounds);
			tell();
			_exit(0);
		}
		if (waitpid(child, &status, 0) < 0 || status != 0) {
			fprintf(stderr, "posts: the child ended with status %#x\n", status);
			return 1;
		}
	}
	return 0;
}
