/*
 * Registers on a real device: `regions DEVICE WHAT N OUT LIBRARY`. What it did, and how long by its own clock, goes to
 * OUT. LIBRARY (verbs.c) has registrations that do nothing.
 */
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static FILE *out;
static void *(*idle)(void *, void *, unsigned long, unsigned long, unsigned int);

static unsigned long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ul + t.tv_nsec;
}

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	pd = context ? ibv_alloc_pd(context) : NULL;
	if (!pd) {
		perror(name);
		exit(9);
	}
}

static void *memory(size_t length)
{
	void *address = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (address == MAP_FAILED) {
		perror("mmap");
		exit(9);
	}
	return address;
}

/* One line per registration: length, errno, ns. */
static void one(void *address, size_t length)
{
	unsigned long began = now(), took;
	struct ibv_mr *mr;
	int error;

	errno = 0;
	mr = ibv_reg_mr(pd, address, length, IBV_ACCESS_LOCAL_WRITE);
	error = mr ? 0 : errno;
	took = now() - began;
	fprintf(out, "reg %zu %d %lu\n", length, error, took);
	if (mr)
		ibv_dereg_mr(mr);
}

/* What the probes of a registration cost outside of what they measure: a registration without any work. */
static void none(void *address)
{
	unsigned long began = now();

	idle(NULL, address, 4096, 0, 0);
	fprintf(out, "idle 4096 0 %lu\n", now() - began);
}

/* N regions from 4 KiB to 64 MiB, most of them small; one in 100 must fail, by turns unmapped and beyond the limit.
 * Each fifth is followed by one without work, for the machine may be slower a second later. */
static void regions(long n)
{
	static const size_t usual[] = { 4096, 8192, 12288, 16384, 65536, 131072 };
	struct rlimit limit = { 96ul << 20, 96ul << 20 };
	char *pool = memory(64ul << 20), *huge = memory(256ul << 20);
	void *unmapped = memory(4096);

	memset(pool, 1, 64ul << 20);
	munmap(unmapped, 4096);
	/* The limit binds ordinary users only. The device is open already. */
	setrlimit(RLIMIT_MEMLOCK, &limit);
	if (!geteuid() && setuid(65534)) {
		perror("setuid");
		exit(9);
	}
	for (long i = 0; i < n; i++) {
		if (i % 200 == 50)
			one(unmapped, 4096);
		else if (i % 200 == 150)
			one(huge, 256ul << 20);
		else if (i % 500 == 7)
			one(pool, 1ul << 20 << (i / 500 % 7));
		else
			one(pool, usual[i % 6]);
		if (i % 5 == 4)
			none(pool);
	}
}

static pthread_barrier_t barrier;

static void *thread(void *n)
{
	char *buffer = memory(16384);

	pthread_barrier_wait(&barrier);
	for (long i = 0; i < (long)n; i++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, buffer, 16384, IBV_ACCESS_LOCAL_WRITE);

		if (mr)
			ibv_dereg_mr(mr);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const char *what = argv[2];
	long n = atol(argv[3]);

	out = argc > 4 ? fopen(argv[4], "w") : stdout;
	if (!strcmp(what, "processes")) {
		for (long i = 0; i < n; i++) {
			if (!fork()) {
				open_device(argv[1]);
				struct ibv_mr *mr = ibv_reg_mr(pd, memory(4096), 4096, IBV_ACCESS_LOCAL_WRITE);
				/* Half of them leave everything to the kernel. */
				if (mr && i % 2)
					ibv_dereg_mr(mr);
				_exit(mr ? 0 : 1);
			}
			wait(NULL);
		}
		return 0;
	}
	open_device(argv[1]);
	if (!strcmp(what, "regions")) {
		void *library = dlopen(argv[5], RTLD_NOW);

		idle = library ? dlsym(library, "ibv_reg_mr_iova2") : NULL;
		if (!idle)
			return 9;
		regions(n);
	} else if (!strcmp(what, "threads")) {
		pthread_t threads[200];

		pthread_barrier_init(&barrier, NULL, 200);
		for (int i = 0; i < 200; i++)
			pthread_create(&threads[i], NULL, thread, (void *)n);
		for (int i = 0; i < 200; i++)
			pthread_join(threads[i], NULL);
	}
	return 0;
}
