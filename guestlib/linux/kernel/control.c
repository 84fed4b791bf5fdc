// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Control messages over the rings of the window: requests, replies, events; registers. */
#include <linux/delay.h>
#include <linux/random.h>

#include "vnic.h"

#define VNIC_CONTROL_TIMEOUT	(10 * HZ)
#define VNIC_CONTROL_MASK	((1U << VNIC_WINDOW_CONTROL_LOG2) - 1)

static void *vnic_slot(struct vnic_queue_header *ring, u32 index)
{
	return (void *)ring + VNIC_QUEUE_HEADER_SIZE +
	       (size_t)(index & VNIC_CONTROL_MASK) * VNIC_WINDOW_MESSAGE_SIZE;
}

static u32 vnic_opened(struct vnic_fn *fn)
{
	/* The number before anything of the session that it opens. */
	return le32_to_cpu(virt_load_acquire(&fn->control.hdr->opened));
}

/* Begins a session. When this returns, nothing of the one before is left. */
int vnic_control_open(struct vnic_fn *fn)
{
	struct vnic_messages *c = &fn->control;
	unsigned long until = jiffies + VNIC_CONTROL_TIMEOUT;
	u32 session;

	/* The number differs from the one before, even if another driver had that. */
	do {
		session = get_random_u32();
	} while (!session || session == le32_to_cpu(c->hdr->open) || session == vnic_opened(fn));
	c->session = session;
	/* All accesses of the session before come first. */
	virt_store_release(&c->hdr->open, cpu_to_le32(session));
	vnic_control_bell(fn);
	while (vnic_opened(fn) != session) {
		if (time_after(jiffies, until) || READ_ONCE(fn->stopping)) {
			WRITE_ONCE(c->hdr->open, 0);
			return -ETIMEDOUT;
		}
		usleep_range(500, 1500);
	}
	c->producer = 0;
	c->consumer = 0;
	vnic_window_start(fn);
	spin_lock_irq(&fn->life_lock);
	WRITE_ONCE(fn->lost, false);
	spin_unlock_irq(&fn->life_lock);
	return 0;
}

/*
 * Asks the device to end the session. Returns whether it has confirmed that within ten
 * seconds: from then on it reaches no memory (DEV-1013). It may be asked again.
 */
bool vnic_control_close(struct vnic_fn *fn)
{
	struct vnic_messages *c = &fn->control;
	unsigned long until = jiffies + VNIC_CONTROL_TIMEOUT;
	unsigned int pause = 500;

	/* All accesses of the session come first. */
	virt_store_release(&c->hdr->open, 0);
	vnic_control_bell(fn);
	while (vnic_opened(fn) == c->session) {
		if (time_after(jiffies, until))
			return false;
		usleep_range(pause, 2 * pause);
		pause = min(2 * pause, 50U * USEC_PER_MSEC);
	}
	return true;
}

static int vnic_control_send(struct vnic_fn *fn, u16 type, const void *body, size_t len)
{
	struct vnic_messages *c = &fn->control;
	struct vnic_msg_header *m = vnic_slot(c->requests, c->producer);

	if (c->producer - le32_to_cpu(READ_ONCE(c->requests->consumer)) > VNIC_CONTROL_MASK)
		return -EBUSY;
	memset(m, 0, VNIC_WINDOW_MESSAGE_SIZE);
	m->length = cpu_to_le32(sizeof(*m) + len);
	m->type = cpu_to_le16(type);
	m->tag = cpu_to_le64(c->tag);
	memcpy(m + 1, body, len);
	c->producer++;
	/* The message before the producer that covers it (DRV-603). */
	virt_store_release(&c->requests->producer, cpu_to_le32(c->producer));
	/* Requests are rare, so the event index is not used. */
	vnic_control_bell(fn);
	return 0;
}

/* Sends a request and waits for its reply. */
int vnic_control_call(struct vnic_fn *fn, u16 type, const void *body, size_t len,
		      u16 want, void *reply, size_t reply_len)
{
	struct vnic_messages *c = &fn->control;
	unsigned long flags;
	int err;

	mutex_lock(&c->lock);
	if (READ_ONCE(fn->lost)) {
		err = -EIO;
		goto out;
	}
	spin_lock_irqsave(&c->reply_lock, flags);
	c->tag++;
	c->reply_type = want;
	c->reply = reply;
	c->reply_len = reply_len;
	reinit_completion(&c->replied);
	spin_unlock_irqrestore(&c->reply_lock, flags);

	err = vnic_control_send(fn, type, body, len);
	if (!err && !wait_for_completion_timeout(&c->replied, VNIC_CONTROL_TIMEOUT))
		err = -ETIMEDOUT;
	spin_lock_irqsave(&c->reply_lock, flags);
	if (!err && c->reply)
		err = -EIO; /* the session ended */
	c->reply = NULL;
	spin_unlock_irqrestore(&c->reply_lock, flags);
	if (err == -ETIMEDOUT)
		dev_warn(&fn->pdev->dev, "control message %u has no reply after %u s\n", type,
			 VNIC_CONTROL_TIMEOUT / HZ);
out:
	mutex_unlock(&c->lock);
	return err;
}

/* Ends the call that waits for a reply, if there is one: the session is over. */
void vnic_control_abort(struct vnic_fn *fn)
{
	unsigned long flags;

	spin_lock_irqsave(&fn->control.reply_lock, flags);
	complete(&fn->control.replied);
	spin_unlock_irqrestore(&fn->control.reply_lock, flags);
}

int vnic_reg_read(struct vnic_fn *fn, u32 offset, u32 width, u64 *value)
{
	struct vnic_reg_read r = { cpu_to_le32(offset), cpu_to_le32(width) };
	struct vnic_reg_reply reply;
	int err;

	*value = 0;
	err = vnic_control_call(fn, VNIC_MSG_REG_READ, &r, sizeof(r), VNIC_MSG_REG_REPLY, &reply,
				sizeof(reply));
	if (err)
		return err;
	if (reply.status)
		return -EIO;
	*value = le64_to_cpu(reply.value);
	return 0;
}

int vnic_reg_write(struct vnic_fn *fn, u32 offset, u32 width, u64 value)
{
	struct vnic_reg_write w = { cpu_to_le32(offset), cpu_to_le32(width), cpu_to_le64(value) };
	struct vnic_reg_reply reply;
	int err;

	err = vnic_control_call(fn, VNIC_MSG_REG_WRITE, &w, sizeof(w), VNIC_MSG_REG_REPLY, &reply,
				sizeof(reply));
	if (err)
		return err;
	if (reply.status) {
		dev_err(&fn->pdev->dev, "the NIC refuses register %#x: status %u\n", offset,
			le32_to_cpu(reply.status));
		return -EIO;
	}
	return 0;
}

static void vnic_control_reply(struct vnic_fn *fn, u16 type, u64 tag, const void *body, size_t len)
{
	struct vnic_messages *c = &fn->control;
	unsigned long flags;

	spin_lock_irqsave(&c->reply_lock, flags);
	if (c->reply && tag == c->tag && type == c->reply_type && len >= c->reply_len) {
		memcpy(c->reply, body, c->reply_len);
		c->reply = NULL;
		complete(&c->replied);
	}
	spin_unlock_irqrestore(&c->reply_lock, flags);
}

/* Events of the admin completion queue, and of completion queues without an event queue. */
static void vnic_completions(struct vnic_fn *fn, const __le32 *cqns, size_t len)
{
	size_t i;

	for (i = 0; i < len / sizeof(*cqns); i++)
		fn->handlers->completion(fn, le32_to_cpu(cqns[i]));
}

static void vnic_control_message(struct vnic_fn *fn, const struct vnic_msg_header *m)
{
	size_t len = le32_to_cpu(m->length);
	const void *body = m + 1;
	u16 type = le16_to_cpu(m->type);

	if (len < sizeof(*m) || len > VNIC_WINDOW_MESSAGE_SIZE)
		return;
	len -= sizeof(*m);
	switch (type) {
	case VNIC_MSG_CQ_EVENT:
		vnic_completions(fn, body, len);
		break;
	case VNIC_MSG_ASYNC_EVENT:
		if (len >= sizeof(struct vnic_async_event))
			fn->handlers->event(fn, body);
		break;
	case VNIC_MSG_ERROR:
		if (len >= sizeof(struct vnic_error_msg))
			dev_err(&fn->pdev->dev, "the NIC ends the session: %.124s\n",
				((const struct vnic_error_msg *)body)->reason);
		break;
	default:
		vnic_control_reply(fn, type, le64_to_cpu(m->tag), body, len);
	}
}

irqreturn_t vnic_control_irq(int irq, void *data)
{
	return IRQ_WAKE_THREAD;
}

/* Handles the device's messages; the thread of vector 0. */
irqreturn_t vnic_control_messages(int irq, void *data)
{
	struct vnic_fn *fn = data;
	struct vnic_messages *c = &fn->control;
	struct vnic_queue_header *ring = c->messages;
	u8 copy[VNIC_WINDOW_MESSAGE_SIZE] __aligned(8);

	for (;;) {
		if (READ_ONCE(fn->lost))
			return IRQ_HANDLED;
		if (vnic_opened(fn) != c->session) {
			fn->handlers->lost(fn, "it ended the session");
			return IRQ_HANDLED;
		}
		/* The producer before the messages that it covers. */
		if (le32_to_cpu(virt_load_acquire(&ring->producer)) == c->consumer) {
			WRITE_ONCE(ring->event_index, cpu_to_le32(c->consumer));
			/* The event index before the producer is read again (DRV-1009). */
			virt_mb();
			if (le32_to_cpu(READ_ONCE(ring->producer)) == c->consumer)
				return IRQ_HANDLED;
			continue;
		}
		memcpy(copy, vnic_slot(ring, c->consumer), sizeof(copy));
		c->consumer++;
		/* The message was copied before the device may use its slot again (DRV-704). */
		virt_store_release(&ring->consumer, cpu_to_le32(c->consumer));
		/* The consumer before Full is read. */
		virt_mb();
		if (READ_ONCE(c->hdr->full))
			vnic_control_bell(fn);
		vnic_control_message(fn, (void *)copy);
	}
}
