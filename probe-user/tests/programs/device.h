/*
 * What every program of these tests that posts by itself begins with: it opens a device, and connects queue pairs of one
 * process. Included before any other header.
 */
#ifndef DEVICE_H
#define DEVICE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(1);
}

/* Nanoseconds of the monotonic clock. */
static inline uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* The port that queue pairs send from, and to. */
struct port {
	union ibv_gid gid;
	int gid_index;
	uint16_t lid;
};

/* Opens the device that RDMA_DEV names, or the first; port 1 with the GID of number RDMA_GID_INDEX, or 0. */
static inline struct ibv_context *open_device(struct port *port)
{
	const char *wanted = getenv("RDMA_DEV"), *index = getenv("RDMA_GID_INDEX");
	int n = 0, i;
	struct ibv_device **devices = ibv_get_device_list(&n);
	struct ibv_context *context;
	struct ibv_port_attr attr;

	for (i = 0; devices && i < n; i++)
		if (!wanted || !strcmp(ibv_get_device_name(devices[i]), wanted))
			break;
	if (!devices || i == n || !(context = ibv_open_device(devices[i])))
		die("cannot open the device");
	port->gid_index = index ? atoi(index) : 0;
	if (ibv_query_gid(context, 1, port->gid_index, &port->gid) || ibv_query_port(context, 1, &attr))
		die("cannot query the port");
	port->lid = attr.lid;
	return context;
}

/* What a queue pair does until it gives up: in the units of struct ibv_qp_attr. */
struct patience {
	uint8_t min_rnr_timer, timeout, retry_cnt, rnr_retry;
};

static const struct patience PATIENT = { .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };

/* Brings a queue pair (RC) to RTS, connected with one of that number at the same port. */
static inline void connect_to(struct ibv_qp *qp, uint32_t number, const struct port *port, int access,
			      struct patience patience)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };

	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = number, .max_dest_rd_atomic = 1,
		.min_rnr_timer = patience.min_rnr_timer,
		.ah_attr = { .is_global = 1, .dlid = port->lid, .port_num = 1,
			     .grh = { .dgid = port->gid, .sgid_index = port->gid_index, .hop_limit = 1 } },
	};
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = patience.timeout, .retry_cnt = patience.retry_cnt,
		.rnr_retry = patience.rnr_retry, .max_rd_atomic = 1 };
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			  IBV_QP_MAX_QP_RD_ATOMIC))
		die("RTS");
}

#endif
