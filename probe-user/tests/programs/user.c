/* Uses verbs.c: `user WHAT N [LIBRARY]`. What it did itself it prints, to be compared with what was seen. */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *(*reg)(void *, void *, unsigned long, int);
static int (*dereg)(void *);
static int (*wait_event)(int *, void **, void **);
static unsigned long registered, failed;

static void regions(long n)
{
	for (long i = 0; i < n; i++) {
		unsigned long length = i % 10 == 3 ? 13 : i % 10 == 7 ? 14 : 4096 * (1 + i % 5);
		void *mr = reg((void *)16, (void *)(4096 * (i + 1)), length, 7);

		if (mr)
			dereg(mr), __atomic_fetch_add(&registered, 1, __ATOMIC_RELAXED);
		else
			__atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED);
	}
}

static void *thread(void *n)
{
	regions((long)n);
	return NULL;
}

static sigjmp_buf back;

static void jump(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

/* Leaves a wait by longjmp, n times, each time from a deeper place on the stack. */
static void jumps(long n)
{
	int channel[2];
	void *cq, *context;
	struct sigaction action = { .sa_handler = jump };

	if (pipe(channel))
		exit(9);
	sigaction(SIGALRM, &action, NULL);
	for (volatile long i = 0; i < n; i++) {
		volatile char deeper[64 * (1 + i % 7)];

		deeper[0] = 0;
		if (!sigsetjmp(back, 1)) {
			ualarm(2000, 0);
			wait_event(channel, &cq, &context);
		}
	}
}

int main(int argc, char **argv)
{
	const char *what = argv[1];
	long n = atol(argv[2]);
	void *library;

	if (!strcmp(what, "late"))
		sleep(1);
	library = dlopen(argv[argc - 1], RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 9;
	}
	reg = dlsym(library, "ibv_reg_mr");
	dereg = dlsym(library, "ibv_dereg_mr");
	wait_event = dlsym(library, "ibv_get_cq_event");
	if (!strcmp(what, "late")) {
		sleep(2);
		regions(n);
	} else if (!strcmp(what, "regions")) {
		regions(n);
	} else if (!strcmp(what, "threads")) {
		pthread_t threads[200];

		for (int i = 0; i < 200; i++)
			pthread_create(&threads[i], NULL, thread, (void *)n);
		for (int i = 0; i < 200; i++)
			pthread_join(threads[i], NULL);
	} else if (!strcmp(what, "processes")) {
		for (long i = 0; i < n; i++) {
			if (!fork()) {
				regions(10);
				_exit(0);
			}
			wait(NULL);
		}
	} else if (!strcmp(what, "jumps")) {
		jumps(n);
		regions(n);
	} else if (!strcmp(what, "forever")) {
		for (;;) {
			regions(10);
			usleep(10000);
		}
	} else if (!strcmp(what, "killed")) {
		regions(10);
		kill(getpid(), SIGKILL);
	}
	printf("%lu %lu\n", registered, failed);
	return 3;
}
