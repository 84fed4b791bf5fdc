// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Admin commands: many outstanding, completed in any order (docs/abi, section 5). */
#include "vnic.h"

/* Registering many gigabytes takes the device longest. */
#define VNIC_COMMAND_TIMEOUT	(120 * HZ)

/* The commands that the driver uses, as the ABI calls them. */
static const char * const vnic_command_names[] = {
	[VNIC_ADMIN_OP_QUERY_DEVICE]	= "QueryDevice",
	[VNIC_ADMIN_OP_ALLOC_PD]	= "AllocPD",
	[VNIC_ADMIN_OP_DEALLOC_PD]	= "DeallocPD",
	[VNIC_ADMIN_OP_REG_MR]		= "RegMR",
	[VNIC_ADMIN_OP_DEREG_MR]	= "DeregMR",
	[VNIC_ADMIN_OP_CREATE_CQ]	= "CreateCQ",
	[VNIC_ADMIN_OP_DESTROY_CQ]	= "DestroyCQ",
	[VNIC_ADMIN_OP_CREATE_QP]	= "CreateQP",
	[VNIC_ADMIN_OP_MODIFY_QP]	= "ModifyQP",
	[VNIC_ADMIN_OP_QUERY_QP]	= "QueryQP",
	[VNIC_ADMIN_OP_DESTROY_QP]	= "DestroyQP",
	[VNIC_ADMIN_OP_CM_LISTEN]	= "CMListen",
	[VNIC_ADMIN_OP_CM_UNLISTEN]	= "CMUnlisten",
	[VNIC_ADMIN_OP_CM_CONNECT]	= "CMConnect",
	[VNIC_ADMIN_OP_CM_ACCEPT]	= "CMAccept",
	[VNIC_ADMIN_OP_CM_REJECT]	= "CMReject",
	[VNIC_ADMIN_OP_CM_DISCONNECT]	= "CMDisconnect",
	[VNIC_ADMIN_OP_CREATE_SRQ]	= "CreateSRQ",
	[VNIC_ADMIN_OP_MODIFY_SRQ]	= "ModifySRQ",
	[VNIC_ADMIN_OP_QUERY_SRQ]	= "QuerySRQ",
	[VNIC_ADMIN_OP_DESTROY_SRQ]	= "DestroySRQ",
	[VNIC_ADMIN_OP_OPEN_XRCD]	= "OpenXRCD",
	[VNIC_ADMIN_OP_CLOSE_XRCD]	= "CloseXRCD",
	[VNIC_ADMIN_OP_ALLOC_MW]	= "AllocMW",
	[VNIC_ADMIN_OP_DEALLOC_MW]	= "DeallocMW",
	[VNIC_ADMIN_OP_REREG_MR]	= "ReregMR",
	[VNIC_ADMIN_OP_RESIZE_CQ]	= "ResizeCQ",
	[VNIC_ADMIN_OP_MODIFY_CQ]	= "ModifyCQ",
	[VNIC_ADMIN_OP_ATTACH_MCAST]	= "AttachMcast",
	[VNIC_ADMIN_OP_DETACH_MCAST]	= "DetachMcast",
	[VNIC_ADMIN_OP_ALLOC_MR]	= "AllocMR",
	[VNIC_ADMIN_OP_QUERY_OBJECTS]	= "QueryObjects",
	[VNIC_ADMIN_OP_QUERY_COUNTERS]	= "QueryCounters",
	[VNIC_ADMIN_OP_ADD_GID]		= "AddGID",
	[VNIC_ADMIN_OP_DEL_GID]		= "DelGID",
};

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

/* Both queues begin at index 0 in a function that is in RESET. */
void vnic_admin_start(struct vnic_fn *fn)
{
	struct vnic_admin *a = &fn->admin;

	a->entries = VNIC_MAX_ADMIN_ENTRIES;
	a->producer = 0;
	a->consumer = 0;
}

/* The function is READY: the device takes commands. */
void vnic_admin_open(struct vnic_fn *fn)
{
	WRITE_ONCE(fn->admin.open, true);
}

/* Ends all commands that wait, and refuses more until vnic_admin_open(): the device is lost. */
void vnic_admin_abort(struct vnic_fn *fn)
{
	struct vnic_admin *a = &fn->admin;
	unsigned long flags;
	unsigned int i;

	spin_lock_irqsave(&a->lock, flags);
	a->open = false;
	for (i = 0; i < ARRAY_SIZE(a->commands); i++) {
		if (!a->commands[i].waiting)
			continue;
		a->commands[i].waiting = false;
		a->commands[i].status = VNIC_STATUS_ABORTED;
		complete(&a->commands[i].done);
	}
	spin_unlock_irqrestore(&a->lock, flags);
}

/* Handles the completions that the device has written. */
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
		if (!(le64_to_cpu(virt_load_acquire(&e->tail)) & VNIC_PHASE) == pass)
			break;
		id = le32_to_cpu(e->id);
		c = &a->commands[id % ARRAY_SIZE(a->commands)];
		if (c->waiting && c->id == id) {
			c->status = le32_to_cpu(e->status);
			if (c->result)
				memcpy(c->result, e->result, c->result_len);
			c->waiting = false;
			if (c->status == VNIC_STATUS_ABORTED)
				fn->handlers->lost(fn, "it aborted a command");
			complete(&c->done);
		}
		a->consumer++;
		took = true;
	}
	if (took) {
		/* The entries were read before the device may use their slots again (DRV-704). */
		virt_store_release(&a->cq->consumer, cpu_to_le32(a->consumer));
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
	/* The semaphore says that one is unused. The low bits of the id are its index. */
	do {
		c = &a->commands[++a->next_id % ARRAY_SIZE(a->commands)];
	} while (c->used);
	c->used = true;
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
	virt_store_release(&a->sq->producer, cpu_to_le32(a->producer));
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

/*
 * Waits for a command. If the device is lost, vnic_admin_abort() ends it. The wait cannot be
 * interrupted: the device may reach the memory of the command until it is complete, and would
 * make an object whose number is lost.
 */
static void vnic_command_wait(struct vnic_fn *fn, struct vnic_command *c, u16 op)
{
	unsigned long until = jiffies + VNIC_COMMAND_TIMEOUT;

	while (!wait_for_completion_timeout(&c->done, HZ)) {
		if (time_after(jiffies, until) && !READ_ONCE(fn->lost)) {
			dev_err(&fn->pdev->dev, "command %s has no answer after %u s\n",
				vnic_command_names[op], VNIC_COMMAND_TIMEOUT / HZ);
			fn->handlers->lost(fn, "it does not complete a command");
		}
	}
}

/* Carries out a command about objects of a life; it sleeps. Returns -EIO if that life is over. */
int vnic_command_in(struct vnic_fn *fn, u32 life, u16 op, const void *params, size_t len,
		    void *result, size_t result_len)
{
	struct vnic_admin *a = &fn->admin;
	struct vnic_command *c;
	unsigned long flags;
	int err;

	down(&a->room);
	c = vnic_command_start(fn, life, op, params, len, result, result_len);
	vnic_command_wait(fn, c, op);
	spin_lock_irqsave(&a->lock, flags);
	err = vnic_status_errno(c->status);
	c->used = false;
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
 * Destroys an object. If its life is over or ending, the object has gone with it. The caller
 * gives its memory to vnic_give_back(), which knows whether the device may still reach it.
 */
int vnic_destroy(struct vnic_fn *fn, u32 life, u16 op, const void *params, size_t len)
{
	int err = vnic_command_in(fn, life, op, params, len, NULL, 0);

	if (err == -EIO || err == -ENOENT)
		return 0;
	return err;
}
