/*
 * A kernel's uverbs device, made up: it grants what a provider library asks for, so that the real, stripped library
 * makes contexts, completion queues and queue pairs as it would with its hardware. To be preloaded.
 *
 * UVERBS_PROVIDER names the provider (mlx5, irdma, efa, others), UVERBS_CQE_VERSION what an mlx5 device has (0 or 1).
 * The device itself is any character device at /dev/infiniband, announced in the folder SYSFS_PATH. ioctl() on it says
 * that the kernel has none, and libibverbs takes the older commands by write(). What the library maps of the device is
 * memory that nobody reads. For mlx5 there is also a device: a thread that follows the doorbell records, reads the
 * entries of work queues and writes those of completion queues; one in UVERBS_PACE_NS, or as fast as it can. It refuses
 * writes with the key 0xbad.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/efa-abi.h>
#include <rdma/irdma-abi.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST 4096
#define FIRST_QP 0x100
#define BLOCK 64
#define REFUSED 0xbad

struct completions {
	char *buffer;
	uint32_t entries, produced;
};

struct queue {
	int taken;
	char *sends;
	__be32 *doorbells;
	uint32_t send_blocks, user_index, peer;
	uint16_t sent, received;
	uint64_t free_ns;
	struct completions *of_sends, *of_receives;
};

static struct completions completions[MOST];
static struct queue queues[MOST];
static uint32_t handles;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t owner;

static int is_provider(const char *name)
{
	const char *provider = getenv("UVERBS_PROVIDER");

	return provider && !strcmp(provider, name);
}

static int cqe_version(void)
{
	const char *version = getenv("UVERBS_CQE_VERSION");

	return !version || atoi(version);
}

static int is_device(int fd)
{
	char link[32], target[32] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	return readlink(link, target, sizeof(target) - 1) > 0 && !strncmp(target, "/dev/infiniband/uverbs", 22);
}

static void complete(struct completions *to, const struct queue *of, uint32_t number, uint32_t opcode, uint16_t block, int kind)
{
	struct mlx5_cqe64 *entry = (void *)(to->buffer + (to->produced & (to->entries - 1)) * BLOCK);

	entry->srqn_uidx = htobe32(cqe_version() ? of->user_index : 0);
	entry->sop_drop_qpn = htobe32(opcode << 24 | number);
	entry->wqe_counter = htobe16(block);
	__atomic_store_n(&entry->op_own, kind << 4 | !!(to->produced & to->entries), __ATOMIC_RELEASE);
	to->produced++;
}

/* The same of a request that failed. */
static void fail(struct completions *to, uint32_t number, uint32_t opcode, uint16_t block)
{
	struct mlx5_err_cqe *entry = (void *)(to->buffer + (to->produced & (to->entries - 1)) * BLOCK);

	entry->syndrome = MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR;
	entry->s_wqe_opcode_qpn = htobe32(opcode << 24 | number);
	entry->wqe_counter = htobe16(block);
	__atomic_store_n(&entry->op_own, MLX5_CQE_REQ_ERR << 4 | !!(to->produced & to->entries), __ATOMIC_RELEASE);
	to->produced++;
}

static uint16_t doorbell(const struct queue *queue, int which)
{
	return be32toh(__atomic_load_n(&queue->doorbells[which], __ATOMIC_ACQUIRE));
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/*
 * What was posted to a queue pair since it was last looked at is done, but for a send to which no receive was posted, and
 * for what takes longer than until `now`.
 */
static void serve(uint32_t number, uint64_t pace, uint64_t now)
{
	struct queue *queue = &queues[number - FIRST_QP], *peer;
	uint16_t posted = doorbell(queue, MLX5_SND_DBR);

	while (queue->sent != posted) {
		const struct mlx5_wqe_ctrl_seg *entry =
			(const void *)(queue->sends + (queue->sent & (queue->send_blocks - 1)) * BLOCK);
		uint32_t opcode = be32toh(entry->opmod_idx_opcode) & 0xff, sixteenths = be32toh(entry->qpn_ds) & 0x3f;

		if (!sixteenths)
			abort();
		if (pace && queue->free_ns + pace > now)
			return;
		queue->free_ns += pace;
		if (opcode == MLX5_OPCODE_SEND || opcode == MLX5_OPCODE_SEND_IMM) {
			peer = &queues[(queue->peer - FIRST_QP) % MOST];
			if (!peer->doorbells || peer->received == doorbell(peer, MLX5_RCV_DBR))
				break;
			complete(peer->of_receives, peer, queue->peer, 0, peer->received++, MLX5_CQE_RESP_SEND);
		}
		if (opcode == MLX5_OPCODE_RDMA_WRITE &&
		    be32toh(((const struct mlx5_wqe_raddr_seg *)(entry + 1))->rkey) == REFUSED)
			fail(queue->of_sends, number, opcode, queue->sent);
		else if (entry->fm_ce_se & MLX5_WQE_CTRL_CQ_UPDATE)
			complete(queue->of_sends, queue, number, opcode, queue->sent, MLX5_CQE_REQ);
		queue->sent += (sixteenths + 3) / 4;
	}
	queue->free_ns = now;
}

static void *device(void *unused)
{
	const char *pace = getenv("UVERBS_PACE_NS");

	for (;;) {
		uint64_t now = now_ns();
		uint32_t n;

		pthread_mutex_lock(&lock);
		for (n = 0; n < MOST; n++)
			if (queues[n].doorbells)
				serve(FIRST_QP + n, pace ? strtoull(pace, NULL, 10) : 0, now);
		pthread_mutex_unlock(&lock);
		usleep(50);
	}
	return unused;
}

/* A forked child has a device of its own: it opens it anew. */
static void begin(void)
{
	sigset_t all, before;
	pthread_t thread;

	if (owner == getpid())
		return;
	owner = getpid();
	pthread_mutex_init(&lock, NULL);
	memset(queues, 0, sizeof(queues));
	memset(completions, 0, sizeof(completions));
	handles = 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (is_provider("mlx5") && pthread_create(&thread, NULL, device, NULL))
		abort();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void get_context(char *out)
{
	struct ib_uverbs_get_context_resp core = { .async_fd = eventfd(0, EFD_CLOEXEC), .num_comp_vectors = 1 };

	memcpy(out, &core, sizeof(core));
	out += sizeof(core);
	if (is_provider("mlx5")) {
		struct mlx5_ib_alloc_ucontext_resp resp = {
			.qp_tab_size = 1 << 18, .bf_reg_size = 512, .tot_bfregs = 16, .cache_line_size = 64,
			.max_sq_desc_sz = 1024, .max_rq_desc_sz = 512, .max_send_wqebb = 1 << 15, .max_recv_wr = 1 << 15,
			.max_srq_recv_wr = (1 << 15) - 1, .num_ports = 1,
			.comp_mask = MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS, .response_length = sizeof(resp),
			.cqe_version = cqe_version(), .eth_min_inline = MLX5_USER_INLINE_MODE_NONE, .log_uar_size = 12,
			.num_uars_per_page = 1,
		};
		memcpy(out, &resp, sizeof(resp));
	} else if (is_provider("irdma")) {
		struct irdma_alloc_ucontext_resp resp = {
			.max_pds = 1024, .max_qps = 1024, .kernel_ver = IRDMA_ABI_VER, .max_hw_wq_frags = 13, .max_hw_read_sges = 13,
			.max_hw_inline = 101, .max_hw_rq_quanta = 1 << 15, .max_hw_wq_quanta = 1 << 15, .min_hw_cq_size = 4,
			.max_hw_cq_size = 1 << 20, .max_hw_sq_chunk = 8, .hw_rev = 2,
		};
		memcpy(out, &resp, sizeof(resp));
	} else if (is_provider("efa")) {
		struct efa_ibv_alloc_ucontext_resp resp = {
			.cmds_supp_udata_mask = EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE | EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
			.sub_cqs_per_cq = 1, .inline_buf_size = 32, .max_llq_size = 1 << 20,
		};
		memcpy(out, &resp, sizeof(resp));
	}
}

static void query_device(char *out, int extended)
{
	struct ib_uverbs_ex_query_device_resp resp = {
		.base = {
			.max_mr_size = UINT64_MAX, .page_size_cap = UINT64_MAX, .max_qp = 1024, .max_qp_wr = 1 << 15, .max_sge = 30,
			.max_sge_rd = 30, .max_cq = 1024, .max_cqe = 1 << 20, .max_mr = 1024, .max_pd = 1024, .max_qp_rd_atom = 16,
			.max_res_rd_atom = 16, .max_qp_init_rd_atom = 16, .atomic_cap = IBV_ATOMIC_HCA, .max_ah = 1024,
			.max_srq = 1024, .max_srq_wr = 1 << 15, .max_srq_sge = 30, .max_pkeys = 1, .phys_port_cnt = 1,
		},
		.response_length = sizeof(resp),
	};

	memcpy(out, &resp, extended ? sizeof(resp) : sizeof(resp.base));
	if (is_provider("efa")) {
		struct efa_ibv_ex_query_device_resp of_driver = {
			.max_sq_wr = 1024, .max_rq_wr = 1024, .max_sq_sge = 2, .max_rq_sge = 2, .max_rdma_size = 1 << 30,
			.device_caps = EFA_QUERY_DEVICE_CAPS_RDMA_READ,
		};
		memcpy(out + sizeof(resp), &of_driver, sizeof(of_driver));
	}
}

static void query_port(char *out)
{
	struct ib_uverbs_query_port_resp resp = {
		.max_msg_sz = 1 << 30, .gid_tbl_len = 1, .pkey_tbl_len = 1, .lid = 1, .state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096,
		.active_mtu = IBV_MTU_4096, .active_width = 2, .active_speed = 32, .phys_state = 5,
		.link_layer = IBV_LINK_LAYER_INFINIBAND,
	};

	memcpy(out, &resp, sizeof(resp));
}

static int create_cq(const char *core, const char *of_driver, char *out, int extended)
{
	const struct ib_uverbs_ex_create_cq *request = (const void *)core;
	struct ib_uverbs_create_cq_resp resp = { .cq_handle = ++handles, .cqe = request->cqe };

	if (handles >= MOST)
		return ENOMEM;
	memcpy(out, &resp, sizeof(resp));
	out += extended ? sizeof(struct ib_uverbs_ex_create_cq_resp) : sizeof(resp);
	if (is_provider("mlx5")) {
		const struct mlx5_ib_create_cq *cq = (const void *)of_driver;
		struct mlx5_ib_create_cq_resp of_mlx5 = { .cqn = resp.cq_handle };

		completions[resp.cq_handle] = (struct completions){ (void *)(uintptr_t)cq->buf_addr, request->cqe + 1, 0 };
		memcpy(out, &of_mlx5, sizeof(of_mlx5));
	} else if (is_provider("irdma")) {
		struct irdma_create_cq_resp of_irdma = { .cq_id = resp.cq_handle, .cq_size = request->cqe };

		memcpy(out, &of_irdma, sizeof(of_irdma));
	} else if (is_provider("efa")) {
		struct efa_ibv_create_cq_resp of_efa = { .q_mmap_size = request->cqe * 32, .cq_idx = resp.cq_handle };

		memcpy(out, &of_efa, sizeof(of_efa));
	}
	return 0;
}

static int create_qp(const char *core, const char *of_driver, char *out, int extended)
{
	const struct ib_uverbs_ex_create_qp *request = (const void *)core;
	struct ib_uverbs_create_qp_resp resp = {
		.max_send_wr = request->max_send_wr, .max_recv_wr = request->max_recv_wr,
		.max_send_sge = request->max_send_sge, .max_recv_sge = request->max_recv_sge,
		.max_inline_data = request->max_inline_data,
	};
	struct queue *queue = queues;

	/* Numbers are used again at once, the lowest first. */
	while (queue < queues + MOST && queue->taken)
		queue++;
	if (queue == queues + MOST || request->send_cq_handle >= MOST || request->recv_cq_handle >= MOST)
		return ENOMEM;
	queue->taken = 1;
	resp.qp_handle = resp.qpn = FIRST_QP + (queue - queues);
	memcpy(out, &resp, sizeof(resp));
	out += extended ? sizeof(struct ib_uverbs_ex_create_qp_resp) : sizeof(resp);
	if (is_provider("mlx5")) {
		const struct mlx5_ib_create_qp *qp = (const void *)of_driver;
		char *buffer = (void *)(uintptr_t)qp->buf_addr;
		struct mlx5_ib_create_qp_resp of_mlx5 = { .bfreg_index = 1 };

		*queue = (struct queue){
			.taken = 1,
			.sends = qp->sq_buf_addr ? (void *)(uintptr_t)qp->sq_buf_addr : buffer + (qp->rq_wqe_count << qp->rq_wqe_shift),
			.doorbells = (void *)(uintptr_t)qp->db_addr, .send_blocks = qp->sq_wqe_count, .user_index = qp->uidx,
			.of_sends = &completions[request->send_cq_handle], .of_receives = &completions[request->recv_cq_handle],
		};
		memcpy(out, &of_mlx5, sizeof(of_mlx5));
	} else if (is_provider("irdma")) {
		struct irdma_create_qp_resp of_irdma = {
			.qp_id = resp.qpn, .actual_sq_size = request->max_send_wr, .actual_rq_size = request->max_recv_wr,
		};
		memcpy(out, &of_irdma, sizeof(of_irdma));
	} else if (is_provider("efa")) {
		const struct efa_ibv_create_qp *qp = (const void *)of_driver;
		struct efa_ibv_create_qp_resp of_efa = { .rq_mmap_size = qp->rq_ring_size };

		memcpy(out, &of_efa, sizeof(of_efa));
	}
	return 0;
}

static struct queue *queue_of(uint32_t handle)
{
	return &queues[(handle - FIRST_QP) % MOST];
}

/* One command; what it does not know is not supported. */
static int answer(unsigned command, int extended, const char *core, const char *of_driver, char *out)
{
	switch (command) {
	case IB_USER_VERBS_CMD_GET_CONTEXT:
		get_context(out);
		return 0;
	case IB_USER_VERBS_CMD_QUERY_DEVICE:
		query_device(out, extended);
		return 0;
	case IB_USER_VERBS_CMD_QUERY_PORT:
		query_port(out);
		return 0;
	case IB_USER_VERBS_CMD_ALLOC_PD:
	case IB_USER_VERBS_CMD_OPEN_XRCD:
	case IB_USER_VERBS_CMD_CREATE_AH:
	case IB_USER_VERBS_CMD_ALLOC_MW:
		*(uint32_t *)out = ++handles;
		return 0;
	case IB_USER_VERBS_CMD_REG_MR: {
		struct ib_uverbs_reg_mr_resp resp = { ++handles, 0x1000 + handles, 0x1000 + handles };

		memcpy(out, &resp, sizeof(resp));
		return 0;
	}
	case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
		*(uint32_t *)out = eventfd(0, EFD_CLOEXEC);
		return 0;
	case IB_USER_VERBS_CMD_CREATE_CQ:
		return create_cq(core, of_driver, out, extended);
	case IB_USER_VERBS_CMD_CREATE_QP:
		return create_qp(core, of_driver, out, extended);
	case IB_USER_VERBS_CMD_MODIFY_QP: {
		const struct ib_uverbs_modify_qp *request = (const void *)core;

		if (request->attr_mask & IBV_QP_DEST_QPN)
			queue_of(request->qp_handle)->peer = request->dest_qp_num;
		return 0;
	}
	case IB_USER_VERBS_CMD_DESTROY_QP: {
		/* Behind the address of the answer. */
		memset(queue_of(*(const uint32_t *)core), 0, sizeof(struct queue));
		return 0;
	}
	case IB_USER_VERBS_CMD_DEALLOC_PD:
	case IB_USER_VERBS_CMD_DEREG_MR:
	case IB_USER_VERBS_CMD_DESTROY_CQ:
	case IB_USER_VERBS_CMD_DESTROY_AH:
	case IB_USER_VERBS_CMD_CLOSE_XRCD:
	case IB_USER_VERBS_CMD_DEALLOC_MW:
		return 0;
	default:
		return EOPNOTSUPP;
	}
}

ssize_t write(int fd, const void *bytes, size_t length)
{
	const struct ib_uverbs_cmd_hdr *head = bytes;
	const char *core = (const char *)(head + 1), *of_driver;
	unsigned command;
	int extended, failed;
	char reply[1024] = "", *out = NULL;
	size_t room = 0;

	if (length < sizeof(*head) || !is_device(fd))
		return syscall(SYS_write, fd, bytes, length);
	command = head->command & 0xff;
	extended = !!(head->command & IB_USER_VERBS_CMD_FLAG_EXTENDED);
	if (extended) {
		const struct ib_uverbs_ex_cmd_hdr *more = (const void *)core;

		core += sizeof(*more);
		out = (void *)(uintptr_t)more->response;
		room = (head->out_words + more->provider_out_words) * 8;
		of_driver = core + head->in_words * 8;
	} else {
		if (head->out_words) {
			/* The address of the answer comes first; what follows is as in the extended command. */
			out = *(char *const *)core;
			core += 8;
			room = head->out_words * 4;
		}
		of_driver = core - 8 +
			    (command == IB_USER_VERBS_CMD_CREATE_CQ ? sizeof(struct ib_uverbs_create_cq) :
								      sizeof(struct ib_uverbs_create_qp));
	}
	if (room > sizeof(reply))
		abort();
	begin();
	pthread_mutex_lock(&lock);
	failed = answer(command, extended, core, of_driver, reply);
	pthread_mutex_unlock(&lock);
	if (failed) {
		errno = failed;
		return -1;
	}
	/* A caller that knows less has less room. */
	memcpy(out, reply, room);
	return length;
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	void *argument;

	va_start(arguments, request);
	argument = va_arg(arguments, void *);
	va_end(arguments);
	if (is_device(fd)) {
		errno = ENOTTY;
		return -1;
	}
	return syscall(SYS_ioctl, fd, request, argument);
}

void *mmap(void *at, size_t length, int access, int flags, int fd, off_t offset)
{
	if (fd >= 0 && is_device(fd)) {
		access |= PROT_READ;
		flags = MAP_SHARED | MAP_ANONYMOUS;
		fd = -1;
		offset = 0;
	}
	return (void *)syscall(SYS_mmap, at, length, access, flags, fd, offset);
}

void *mmap64(void *at, size_t length, int access, int flags, int fd, off_t offset)
{
	return mmap(at, length, access, flags, fd, offset);
}
