/* A library that exports verbs without a device behind them: what the probes see of it is what they see of any. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

struct mr {
	void *context, *pd, *addr;
	unsigned long length;
	unsigned int handle, lkey, rkey;
};

/* Lengths that fail, as a kernel would let them. */
enum { NO_MEMORY = 13, NO_ADDRESS = 14 };

void *ibv_reg_mr_iova2(void *pd, void *addr, unsigned long length, unsigned long iova, unsigned int access)
{
	struct mr *mr;

	(void)iova, (void)access;
	if (length == NO_MEMORY || length == NO_ADDRESS) {
		errno = length == NO_MEMORY ? ENOMEM : EFAULT;
		return NULL;
	}
	mr = calloc(1, sizeof(*mr));
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = 7;
	mr->rkey = 8;
	return mr;
}

void *ibv_reg_mr(void *pd, void *addr, unsigned long length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (unsigned long)addr, access);
}

int ibv_dereg_mr(void *mr)
{
	free(mr);
	return 0;
}

/* "channel" is the read end of a pipe. */
int ibv_get_cq_event(int *channel, void **cq, void **context)
{
	char byte;

	if (read(*channel, &byte, 1) != 1)
		return -1;
	*cq = *context = NULL;
	return 0;
}
