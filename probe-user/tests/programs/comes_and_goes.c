/*
 * Opens a verbs library, makes a queue pair, posts through it, and closes all of it again, over and over.
 *
 * comes_and_goes LIBRARY ROUNDS gone|stays wait
 *
 * In each round one to sixteen lists of three writes, the last of each signalled. For each queue pair it prints its number and its work
 * requests, in their order. "gone": the library must be unloaded each time. It waits for a line of input when it has
 * made the first queue pair.
 */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIST 3

static void *library;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void *function(const char *name)
{
	void *at = dlsym(library, name);

	if (!at)
		die(name);
	return at;
}

#define FUNCTION(name) ((__typeof__(name) *)function(#name))
/* Macros of the header hide these. */
typedef struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
typedef int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);

static void connect_to_itself(struct ibv_context *context, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	__typeof__(ibv_modify_qp) *modify_qp = FUNCTION(ibv_modify_qp);
	struct ibv_port_attr port = {};
	union ibv_gid gid;

	if (FUNCTION(ibv_query_gid)(context, 1, 0, &gid) || ((query_port)function("ibv_query_port"))(context, 1, &port))
		die("port");
	if (modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .grh = { .dgid = gid, .hop_limit = 1 }, .dlid = port.lid, .port_num = 1 },
	};
	if (modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	if (modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				 IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS");
}

static void post(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr, char *memory)
{
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct ibv_send_wr wr[LIST] = {}, *bad;
	struct ibv_wc wc;
	int i, n;

	for (i = 0; i < LIST; i++) {
		wr[i].next = i + 1 < LIST ? &wr[i + 1] : NULL;
		wr[i].sg_list = &sge;
		wr[i].num_sge = 1;
		wr[i].opcode = IBV_WR_RDMA_WRITE;
		wr[i].send_flags = i + 1 < LIST ? 0 : IBV_SEND_SIGNALED;
		wr[i].wr.rdma.remote_addr = (uintptr_t)memory + 64;
		wr[i].wr.rdma.rkey = mr->rkey;
	}
	if (ibv_post_send(qp, wr, &bad))
		die("post");
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	if (n < 0 || wc.status != IBV_WC_SUCCESS)
		die("completion");
}

int main(int argc, char **argv)
{
	static char memory[4096];
	int rounds, round, lists, i, gone;
	char line[16];

	if (argc < 4)
		return 2;
	rounds = atoi(argv[2]);
	gone = !strcmp(argv[3], "gone");
	for (round = 1; round <= rounds; round++) {
		struct ibv_device **devices;
		struct ibv_context *context;
		struct ibv_pd *pd;
		struct ibv_mr *mr;
		struct ibv_cq *cq;
		struct ibv_qp *qp;
		struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 16, 1, 1, 1, 0 } };

		lists = round % 16 + 1;
		library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
		if (!library)
			die(dlerror());
		devices = FUNCTION(ibv_get_device_list)(NULL);
		if (!devices || !devices[0] || !(context = FUNCTION(ibv_open_device)(devices[0])))
			die("device");
		pd = FUNCTION(ibv_alloc_pd)(context);
		mr = ((reg_mr)function("ibv_reg_mr"))(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		cq = FUNCTION(ibv_create_cq)(context, 64, NULL, NULL, 0);
		attr.send_cq = attr.recv_cq = cq;
		if (!mr || !cq || !(qp = FUNCTION(ibv_create_qp)(pd, &attr)))
			die("objects");
		connect_to_itself(context, qp);
		if (round == 1) {
			printf("ready\n");
			fflush(stdout);
			if (!fgets(line, sizeof(line), stdin))
				return 1;
		}
		for (i = 0; i < lists; i++)
			post(qp, cq, mr, memory);
		printf("%u %d\n", qp->qp_num, lists * LIST);
		if (FUNCTION(ibv_destroy_qp)(qp) || FUNCTION(ibv_destroy_cq)(cq) || FUNCTION(ibv_dereg_mr)(mr) ||
		    FUNCTION(ibv_dealloc_pd)(pd) || FUNCTION(ibv_close_device)(context))
			die("their end");
		FUNCTION(ibv_free_device_list)(devices);
		dlclose(library);
		if (gone && dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD))
			die("still loaded");
	}
	return 0;
}
