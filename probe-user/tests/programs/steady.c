/*
 * Writes at a steady pace over one queue pair, and says of itself at any time what it did.
 *
 * steady FILE SECONDS RATE LIST EVERY DEPTH WORK busy|sleep [wait]
 *
 * RATE posts a second (0: as many as it can) of LIST work requests each, of which one in EVERY is signalled, at most DEPTH
 * of them under way; before each post WORK turns of a loop. While it may not post it polls, at once again ("busy") or
 * after a nap ("sleep"). "wait" waits for a line of input after everything was made. FILE holds, as long as it runs, what
 * it did so far: posts, work requests, signalled ones, completions, polls, those that found nothing, bytes (64 bits each).
 */
#include "device.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES 64
#define MOST_LIST 64

struct did {
	volatile uint64_t posts, wrs, signalled, cqes, polls, empty, bytes;
};

static struct did *did;
static struct ibv_cq *cq;
static struct ibv_qp *qp[2];
static struct ibv_mr *mr;
static char *memory;

static void make(int depth)
{
	struct port port;
	struct ibv_context *context = open_device(&port);
	struct ibv_pd *pd;
	int i;

	pd = ibv_alloc_pd(context);
	if (posix_memalign((void **)&memory, 4096, 4096))
		die("no memory");
	mr = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!mr)
		die("cannot register");
	cq = ibv_create_cq(context, depth, NULL, NULL, 0);
	if (!cq)
		die("cannot make a completion queue");
	for (i = 0; i < 2; i++) {
		struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = depth, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };

		qp[i] = ibv_create_qp(pd, &attr);
		if (!qp[i])
			die("cannot make a queue pair");
	}
	for (i = 0; i < 2; i++)
		connect_to(qp[i], qp[!i]->qp_num, &port, IBV_ACCESS_REMOTE_WRITE, PATIENT);
}

static void post(int list, int every)
{
	static struct ibv_send_wr wr[MOST_LIST];
	static struct ibv_sge sge[MOST_LIST];
	struct ibv_send_wr *bad;
	uint64_t signalled = 0;
	int i;

	for (i = 0; i < list; i++) {
		sge[i] = (struct ibv_sge){ (uintptr_t)memory, BYTES, mr->lkey };
		wr[i] = (struct ibv_send_wr){ .next = i + 1 < list ? &wr[i + 1] : NULL, .sg_list = &sge[i], .num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.wr.rdma = { .remote_addr = (uintptr_t)memory, .rkey = mr->rkey } };
		if ((did->wrs + i + 1) % every == 0) {
			wr[i].send_flags = IBV_SEND_SIGNALED;
			signalled++;
		}
	}
	errno = ibv_post_send(qp[0], wr, &bad);
	if (errno)
		die("post");
	did->posts++;
	did->wrs += list;
	did->signalled += signalled;
	did->bytes += (uint64_t)list * BYTES;
}

/* Returns how many completions there were. */
static int poll(void)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(cq, 16, wc), i;

	if (n < 0)
		die("poll");
	for (i = 0; i < n; i++)
		if (wc[i].status)
			die("a request failed");
	did->polls++;
	did->empty += !n;
	did->cqes += n;
	return n;
}

static struct did *counters(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	void *at;

	if (fd < 0 || ftruncate(fd, sizeof(struct did)))
		die(path);
	at = mmap(NULL, sizeof(struct did), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		die(path);
	return at;
}

int main(int argc, char **argv)
{
	uint64_t period, next, end, time, outstanding = 0;
	int list, every, depth, work, sleeps, i;
	volatile uint64_t turns = 0;
	char line[16];

	if (argc < 9 || atoi(argv[4]) > MOST_LIST) {
		fprintf(stderr, "usage: steady FILE SECONDS RATE LIST EVERY DEPTH WORK busy|sleep [wait]\n");
		return 2;
	}
	did = counters(argv[1]);
	period = atof(argv[3]) > 0 ? 1e9 / atof(argv[3]) : 0;
	list = atoi(argv[4]);
	every = atoi(argv[5]);
	depth = atoi(argv[6]);
	work = atoi(argv[7]);
	sleeps = !strcmp(argv[8], "sleep");
	make(depth);
	if (argc > 9) {
		printf("ready\n");
		fflush(stdout);
		if (!fgets(line, sizeof(line), stdin))
			return 1;
	}
	next = now();
	end = next + atof(argv[2]) * 1e9;
	while ((time = now()) < end) {
		if (outstanding + list <= (uint64_t)depth && (!period || time >= next)) {
			for (i = 0; i < work; i++)
				turns++;
			post(list, every);
			outstanding += list;
			next += period;
			/* What was missed for long is not made up for. */
			if (period && next + 100000000 < time)
				next = time;
			continue;
		}
		i = poll();
		outstanding -= (uint64_t)i * every;
		if (!i && sleeps)
			usleep(20);
	}
	/* What is unsignalled at the end has no completion to wait for. */
	while (outstanding >= (uint64_t)every) {
		i = poll();
		outstanding -= (uint64_t)i * every;
		if (!i && sleeps)
			usleep(20);
	}
	printf("done\n");
	return 0;
}
