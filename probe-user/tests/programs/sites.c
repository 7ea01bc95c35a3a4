/* Registers from two places, through one layer, and leaks at one of them. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *(*reg)(void *, void *, unsigned long, unsigned long, unsigned int);
static int (*dereg)(void *);

__attribute__((noinline)) void *pool_grow(unsigned long bytes)
{
	void *mr = reg((void *)1, (void *)0x10000, bytes, 0, 7);

	/* Something after the call, so that it is no tail call and this function is on the stack. */
	__asm__ volatile("" ::"r"(mr) : "memory");
	return mr;
}

__attribute__((noinline)) void send_one_message(void)
{
	void *mr = pool_grow(4096);

	if (dereg(mr))
		abort();
	__asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) void open_connection(void)
{
	if (!pool_grow(65536))
		abort();
	__asm__ volatile("" ::: "memory");
}

int main(int argc, char **argv)
{
	void *library = dlopen(argv[1], RTLD_NOW);
	int i;

	if (argc < 2 || !library)
		return 1;
	reg = dlsym(library, "ibv_reg_mr_iova2");
	dereg = dlsym(library, "ibv_dereg_mr");
	for (i = 0; i < 50; i++)
		send_one_message();
	for (i = 0; i < 7; i++)
		open_connection();
	return 0;
}
