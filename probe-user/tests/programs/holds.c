/*
 * Makes an object of every kind that the device's provider makes, says which, and holds them until its input ends.
 *
 * holds
 *
 * Completion queues: classic, and extended ones for each way of polling. Queue pairs: of each type, classic and
 * extended, half of them up to the state in which they send.
 */
#include <infiniband/efadv.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void said(const char *what, const char *how, const void *object)
{
	if (object)
		printf("%s %s\n", what, how);
}

/* A provider that does not know a flag is asked without it. */
static void extended_cq(const char *how, unsigned long wc_flags, unsigned flags)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 64, .wc_flags = wc_flags, .comp_mask = flags ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0, .flags = flags,
	};

	said("cq", how, ibv_create_cq_ex(context, &attr));
}

static void to_send(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int rc = qp->qp_type == IBV_QPT_RC;

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (rc ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY)))
		return;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
				     .ah_attr = { .dlid = 1, .port_num = 1 } };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | (rc ? IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
								 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)))
		return;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS };
	if (!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
								      IBV_QP_MAX_QP_RD_ATOMIC : 0)))
		printf("qp sends\n");
}

static struct ibv_qp_init_attr_ex attributes(enum ibv_qp_type type, unsigned long operations)
{
	return (struct ibv_qp_init_attr_ex){
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .pd = pd,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | (operations ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.send_ops_flags = operations,
	};
}

static void queue_pairs(const char *name, enum ibv_qp_type type)
{
	/* Some providers set all functions of a type whatever is asked for, some those asked for, and refuse the others. */
	unsigned long operations[] = { 0, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM };
	size_t n, twice;

	for (n = 0; n < 3; n++) {
		for (twice = 0; twice < 2; twice++) {
			struct ibv_qp_init_attr_ex attr = attributes(type, operations[n]);
			struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
			char how[64];

			snprintf(how, sizeof(how), "%s%s", name, n ? " extended" : "");
			said("qp", how, qp);
			if (qp && twice && (type == IBV_QPT_RC || type == IBV_QPT_UD))
				to_send(qp);
		}
	}
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	unsigned long wallclock = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	unsigned single = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;

	if (!devices || !devices[0] || !(context = ibv_open_device(devices[0]))) {
		perror("holds: no device");
		return 1;
	}
	printf("context %s\n", ibv_get_device_name(devices[0]));
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	said("cq", "classic", cq);
	if (pd && cq) {
		struct ibv_qp_init_attr_ex attr;

		extended_cq("extended", 0, 0);
		extended_cq("extended single-threaded", 0, single);
		extended_cq("extended with a clock", wallclock, 0);
		extended_cq("extended single-threaded with a clock", wallclock, single);
		queue_pairs("rc", IBV_QPT_RC);
		queue_pairs("uc", IBV_QPT_UC);
		queue_pairs("ud", IBV_QPT_UD);
		queue_pairs("raw", IBV_QPT_RAW_PACKET);
		queue_pairs("xrc", IBV_QPT_XRC_SEND);
		if (mlx5dv_is_supported(devices[0])) {
			struct mlx5dv_qp_init_attr dc = {
				.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC, .dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCI },
			};

			attr = attributes(IBV_QPT_DRIVER, IBV_QP_EX_WITH_SEND);
			said("qp", "dc extended", mlx5dv_create_qp(context, &attr, &dc));
		}
		if (!strncmp(ibv_get_device_name(devices[0]), "efa", 3)) {
			struct efadv_qp_init_attr srd = { .driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD };

			attr = attributes(IBV_QPT_DRIVER, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ);
			said("qp", "srd extended", efadv_create_qp_ex(context, &attr, &srd, sizeof(srd)));
		}
	}
	printf("ready\n");
	fflush(stdout);
	getchar();
	return 0;
}
