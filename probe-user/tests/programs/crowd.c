/*
 * Posts to queue pairs that are connected to themselves: to some that come and go, by threads that come and go, and to
 * many that stay.
 *
 * crowd ROUNDS THREADS STAYING wait
 *
 * Each round makes a queue pair, to which THREADS new threads post in turn, single requests and lists, and destroys it.
 * Says of each queue pair its number and how many requests were posted to it: of those of the rounds first.
 */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST 3
/* Posts of a thread to a queue pair: every fourth is a list. */
#define POSTS 8

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static char memory[8192];
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *what)
{
	fprintf(stderr, "crowd: %s\n", what);
	exit(1);
}

static struct ibv_qp *make(void)
{
	struct ibv_qp_init_attr made = {
		.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .cap = { 16, 1, 1, 1, 16 }
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &made);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_port_attr port = {};
	union ibv_gid gid;

	if (!qp || ibv_query_gid(context, 1, 0, &gid) || ibv_query_port(context, 1, &port))
		die("queue pair");
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .grh = { .dgid = gid, .hop_limit = 1 }, .dlid = port.lid, .port_num = 1 },
	};
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1
	};
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS");
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
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_qp **staying, *qp;
	pthread_t thread[64];
	int rounds, threads, n, i, j;
	char line[16];

	if (argc < 4 || !devices || !devices[0])
		return 2;
	rounds = atoi(argv[1]);
	threads = atoi(argv[2]);
	n = atoi(argv[3]);
	if (threads > 64)
		return 2;
	context = ibv_open_device(devices[0]);
	pd = context ? ibv_alloc_pd(context) : NULL;
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
