/*
 * Posts to queue pairs that are connected to themselves: to some that come and go, by threads that come and go, and to
 * many that stay.
 *
 * crowd ROUNDS THREADS STAYING wait
 *
 * Each round makes a queue pair, to which THREADS new threads post in turn, single requests and lists, and destroys it.
 * Says of each queue pair its number and how many requests were posted to it: of those of the rounds first.
 */
#include "device.h"
#include <pthread.h>

#define LIST 3
/* Posts of a thread to a queue pair: every fourth is a list. */
#define POSTS 8

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct port port;
static char memory[8192];
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static struct ibv_qp *make(void)
{
	struct ibv_qp_init_attr made = {
		.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .cap = { 16, 1, 1, 1, 16 }
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &made);

	if (!qp)
		die("queue pair");
	connect_to(qp, qp->qp_num, &port, IBV_ACCESS_REMOTE_WRITE, PATIENT);
	return qp;
}

/* Writes that follow one another in local memory, the last of each call signalled; of what they wrote, the first bytes. */
static void *post(void *at)
{
	struct ibv_qp *qp = at;
	struct ibv_sge sge[LIST];
	struct ibv_send_wr wr[LIST], *bad;
	struct ibv_wc wc;
	int i, j, n, found;

	for (i = 0; i < POSTS; i++) {
		memset(wr, 0, sizeof(wr));
		n = i % 4 == 3 ? LIST : 1;
		for (j = 0; j < n; j++) {
			sge[j] = (struct ibv_sge){ (uintptr_t)memory + 64 * (i % 4 + j), 64, mr->lkey };
			wr[j].wr_id = i * LIST + j + 1;
			wr[j].next = j + 1 < n ? &wr[j + 1] : NULL;
			wr[j].sg_list = &sge[j];
			wr[j].num_sge = 1;
			wr[j].opcode = IBV_WR_RDMA_WRITE;
			wr[j].send_flags = j + 1 < n ? 0 : IBV_SEND_SIGNALED;
			wr[j].wr.rdma.remote_addr = (uintptr_t)memory + 4096;
			wr[j].wr.rdma.rkey = mr->rkey;
		}
		pthread_mutex_lock(&turn);
		if (ibv_post_send(qp, wr, &bad))
			die("post");
		while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
			;
		if (found < 0 || wc.status != IBV_WC_SUCCESS)
			die("completion");
		pthread_mutex_unlock(&turn);
	}
	return NULL;
}

static int posted_by(int threads)
{
	return threads * (POSTS + POSTS / 4 * (LIST - 1));
}

int main(int argc, char **argv)
{
	struct ibv_qp **staying, *qp;
	pthread_t thread[64];
	int rounds, threads, n, i, j;
	char line[16];

	if (argc < 4)
		return 2;
	rounds = atoi(argv[1]);
	threads = atoi(argv[2]);
	n = atoi(argv[3]);
	if (threads > 64)
		return 2;
	context = open_device(&port);
	pd = ibv_alloc_pd(context);
	mr = pd ? ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) : NULL;
	cq = mr ? ibv_create_cq(context, 64, NULL, NULL, 0) : NULL;
	staying = calloc(n, sizeof(*staying));
	if (!cq || !staying)
		die("objects");
	for (i = 0; i < n; i++)
		staying[i] = make();
	printf("ready\n");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	for (i = 0; i < rounds; i++) {
		qp = make();
		for (j = 0; j < threads; j++)
			if (pthread_create(&thread[j], NULL, post, qp))
				die("thread");
		for (j = 0; j < threads; j++)
			pthread_join(thread[j], NULL);
		printf("%u %d\n", qp->qp_num, posted_by(threads));
		if (ibv_destroy_qp(qp))
			die("its end");
	}
	for (i = 0; i < n; i++) {
		post(staying[i]);
		printf("%u %d\n", staying[i]->qp_num, posted_by(1));
	}
	return 0;
}
