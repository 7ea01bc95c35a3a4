// Cancels threads that wait inside a probed call: destructors and cleanup handlers of their callers must run.
#include <cstdio>
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

static int (*wait_event)(int *, void **, void **);
static int destroyed, cleaned;

struct Guard {
	~Guard() { destroyed++; }
};

static void cleanup(void *)
{
	cleaned++;
}

static void *wait_for_ever(void *channel)
{
	Guard guard;
	void *cq, *context;

	pthread_cleanup_push(cleanup, nullptr);
	wait_event(static_cast<int *>(channel), &cq, &context);
	pthread_cleanup_pop(0);
	return nullptr;
}

int main(int, char **argv)
{
	int cancelled = 0;

	void *library = dlopen(argv[1], RTLD_NOW);
	wait_event = reinterpret_cast<decltype(wait_event)>(dlsym(library, "ibv_get_cq_event"));
	for (int i = 0; i < 20; i++) {
		int channel[2];
		pthread_t thread;
		void *result;

		if (pipe(channel))
			return 9;
		pthread_create(&thread, nullptr, wait_for_ever, channel);
		usleep(20000);
		pthread_cancel(thread);
		pthread_join(thread, &result);
		cancelled += result == PTHREAD_CANCELED;
	}
	std::printf("%d %d %d\n", cancelled, destroyed, cleaned);
}
