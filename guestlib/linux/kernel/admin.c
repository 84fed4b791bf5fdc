// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Admin commands: many outstanding, completed in any order (docs/abi, section 5). */
#include "vnic.h"

/* Registering many gigabytes is the longest a device takes. */
#define VNIC_COMMAND_TIMEOUT	(120 * HZ)

static int vnic_status_errno(u32 status)
{
	switch (status) {
	case VNIC_STATUS_OK:			return 0;
	case VNIC_STATUS_INVALID_ARGUMENT:	return -EINVAL;
	case VNIC_STATUS_NO_RESOURCES:		return -ENOMEM;
	case VNIC_STATUS_NOT_FOUND:		return -ENOENT;
	case VNIC_STATUS_BUSY:			return -EBUSY;
	case VNIC_STATUS_BAD_STATE:		return -EINVAL;
	case VNIC_STATUS_DENIED:		return -EPERM;
	case VNIC_STATUS_UNSUPPORTED:		return -EOPNOTSUPP;
	case VNIC_STATUS_UNKNOWN_COMMAND:	return -EOPNOTSUPP;
	case VNIC_STATUS_MEMORY_FAULT:		return -EFAULT;
	case VNIC_STATUS_TIMEOUT:		return -ETIMEDOUT;
	case VNIC_STATUS_UNREACHABLE:		return -EHOSTUNREACH;
	case VNIC_STATUS_ADDRESS_IN_USE:	return -EADDRINUSE;
	case VNIC_STATUS_TOO_LARGE:		return -EINVAL;
	case VNIC_STATUS_REFUSED:		return -ECONNREFUSED;
	case VNIC_STATUS_ABORTED:		return -EIO;
	default:				return -EPROTO;
	}
}

/* Begins anew with a function in RESET. */
void vnic_admin_start(struct vnic_fn *fn)
{
	struct vnic_admin *a = &fn->admin;

	a->entries = VNIC_MAX_ADMIN_ENTRIES;
	a->producer = 0;
	a->consumer = 0;
}

/* Ends all commands that wait: the device is gone. */
void vnic_admin_abort(struct vnic_fn *fn)
{
	struct vnic_admin *a = &fn->admin;
	unsigned long flags;
	unsigned int i;

	spin_lock_irqsave(&a->lock, flags);
	for (i = 0; i < ARRAY_SIZE(a->commands); i++) {
		if (!a->commands[i].waiting)
			continue;
		a->commands[i].waiting = false;
		a->commands[i].status = VNIC_STATUS_ABORTED;
		complete(&a->commands[i].done);
	}
	spin_unlock_irqrestore(&a->lock, flags);
}

/* Takes the completions that are there. */
void vnic_admin_poll(struct vnic_fn *fn)
{
	struct vnic_admin *a = &fn->admin;
	struct vnic_admin_cqe *ring = (void *)a->cq + VNIC_QUEUE_HEADER_SIZE;
	struct vnic_admin_cqe *e;
	struct vnic_command *c;
	unsigned long flags;
	bool pass, took = false;
	u32 id;

	spin_lock_irqsave(&a->lock, flags);
	while (!READ_ONCE(fn->lost)) {
		e = &ring[a->consumer & (a->entries - 1)];
		pass = !(a->consumer & a->entries);
		/* The phase before the rest of the entry (DRV-703). */
		if (!(le64_to_cpu(smp_load_acquire(&e->tail)) & VNIC_PHASE) == pass)
			break;
		id = le32_to_cpu(e->id);
		c = &a->commands[id % ARRAY_SIZE(a->commands)];
		if (c->waiting && c->id == id) {
			c->status = le32_to_cpu(e->status);
			if (c->result)
				memcpy(c->result, e->result, c->result_len);
			c->waiting = false;
			if (c->status == VNIC_STATUS_ABORTED)
				vnic_fn_lost(fn, "it aborted a command");
			complete(&c->done);
		}
		a->consumer++;
		took = true;
	}
	if (took) {
		/* What was read before the slots are the device's again (DRV-704). */
		smp_store_release(&a->cq->consumer, cpu_to_le32(a->consumer));
	}
	spin_unlock_irqrestore(&a->lock, flags);
}

static struct vnic_command *vnic_command_start(struct vnic_fn *fn, u32 life, u16 op,
					       const void *params, size_t len, void *result,
					       size_t result_len)
{
	struct vnic_admin *a = &fn->admin;
	struct vnic_admin_cmd *e;
	struct vnic_command *c;
	unsigned long flags;

	spin_lock_irqsave(&a->lock, flags);
	/* The semaphore says that one is free; its number is in the id's low bits. */
	do {
		c = &a->commands[++a->next_id % ARRAY_SIZE(a->commands)];
	} while (c->result_len != SIZE_MAX);
	c->id = a->next_id;
	c->result = result;
	c->result_len = result_len;
	c->waiting = true;
	reinit_completion(&c->done);
	if (!a->open || !vnic_alive(fn, life)) {
		c->waiting = false;
		c->status = VNIC_STATUS_ABORTED;
		complete(&c->done);
		goto out;
	}

	e = (void *)a->sq + VNIC_QUEUE_HEADER_SIZE +
	    (size_t)(a->producer & (a->entries - 1)) * sizeof(*e);
	memset(e, 0, sizeof(*e));
	e->opcode = cpu_to_le16(op);
	e->id = cpu_to_le32(c->id);
	if (len)
		memcpy(e->params, params, len);
	a->producer++;
	/* The command before the producer that covers it (DRV-603). */
	smp_store_release(&a->sq->producer, cpu_to_le32(a->producer));
	vnic_ring(fn, VNIC_DOORBELL_ADMIN, 0, a->producer);
out:
	spin_unlock_irqrestore(&a->lock, flags);
	return c;
}

/* Sends the doorbell again. */
void vnic_admin_ring(struct vnic_fn *fn)
{
	struct vnic_admin *a = &fn->admin;
	unsigned long flags;

	spin_lock_irqsave(&a->lock, flags);
	if (a->open)
		vnic_ring(fn, VNIC_DOORBELL_ADMIN, 0, a->producer);
	spin_unlock_irqrestore(&a->lock, flags);
}

/* Waits for a command; a device that is lost completes none. */
static void vnic_command_wait(struct vnic_fn *fn, struct vnic_command *c)
{
	unsigned long until = jiffies + VNIC_COMMAND_TIMEOUT;

	while (!wait_for_completion_timeout(&c->done, HZ)) {
		if (time_after(jiffies, until))
			vnic_fn_lost(fn, "it does not complete a command");
		if (READ_ONCE(fn->lost))
			vnic_admin_abort(fn);
	}
}

/* Carries out a command about objects of a life; it sleeps. -EIO: that life is over. */
int vnic_command_in(struct vnic_fn *fn, u32 life, u16 op, const void *params, size_t len,
		    void *result, size_t result_len)
{
	struct vnic_admin *a = &fn->admin;
	struct vnic_command *c;
	unsigned long flags;
	int err;

	down(&a->room);
	c = vnic_command_start(fn, life, op, params, len, result, result_len);
	vnic_command_wait(fn, c);
	spin_lock_irqsave(&a->lock, flags);
	err = vnic_status_errno(c->status);
	c->result = NULL;
	c->result_len = SIZE_MAX; /* free */
	spin_unlock_irqrestore(&a->lock, flags);
	up(&a->room);
	return err;
}

/* Carries out a command that names no object. */
int vnic_command(struct vnic_fn *fn, u16 op, const void *params, size_t len,
		 void *result, size_t result_len)
{
	return vnic_command_in(fn, READ_ONCE(fn->life), op, params, len, result, result_len);
}

/*
 * Destroys an object; one of a life that is over, or ends, goes with it. What memory it
 * had goes by vnic_give_back(), which knows whether the device may still reach it.
 */
int vnic_destroy(struct vnic_fn *fn, u32 life, u16 op, const void *params, size_t len)
{
	int err = vnic_command_in(fn, life, op, params, len, NULL, 0);

	if (err == -EIO || err == -ENOENT)
		return 0;
	return err;
}
