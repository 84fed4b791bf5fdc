// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The life of a function: session, registers, READY; its loss, and its return.
 *
 *           open, enable            its interface (netdev.c)
 *   down ---------------> up -----------------------> ib_device registered
 *    ^                                                       |
 *    '--- the session ended, a fault, another state (DRV-210) '
 *
 * One work item takes all steps: it looks at the state and takes the next one. Another one
 * handles a loss. The ib_device stays registered meanwhile, because some users do not recover
 * from its removal: NVMe deletes its controllers then (nvme_rdma_remove_one), but connects again
 * by itself when only its queue pairs fail.
 */
#include <linux/delay.h>
#include <linux/etherdevice.h>

#include "vnic.h"

#define VNIC_RETRY	HZ

/* The next life begins: at once, or after a while if the function did not come up in this one. */
static void vnic_fn_again(struct vnic_fn *fn)
{
	if (!READ_ONCE(fn->stopping))
		mod_delayed_work(fn->wq, &fn->work, READ_ONCE(fn->up) ? 0 : VNIC_RETRY);
}

/* Notes that the session is over. why is NULL if the driver itself ends it; from any context. */
static void vnic_fn_lost(struct vnic_fn *fn, const char *why)
{
	unsigned long flags;
	bool was;

	spin_lock_irqsave(&fn->life_lock, flags);
	was = fn->lost;
	WRITE_ONCE(fn->lost, true);
	if (!was)
		WRITE_ONCE(fn->ending, true);
	spin_unlock_irqrestore(&fn->life_lock, flags);
	if (was)
		return;
	if (why)
		dev_warn(&fn->pdev->dev, "the NIC is lost: %s\n", why);
	vnic_control_abort(fn);
	queue_work(fn->loss_wq, &fn->loss);
}

const struct vnic_handlers vnic_handlers = {
	.lost = vnic_fn_lost,
	.completion = vnic_completion_event,
	.event = vnic_async_event,
};

/* Waits until the device reaches no memory any more; false if the driver leaves before. */
static bool vnic_await_close(struct vnic_fn *fn)
{
	bool said = false;

	while (!vnic_control_close(fn)) {
		if (!said)
			dev_warn(&fn->pdev->dev,
				 "the NIC does not let go of memory: what it may reach stays pinned, and the kernel's users wait, until it answers or is started anew\n");
		said = true;
		if (READ_ONCE(fn->leaving))
			return false;
	}
	return true;
}

/*
 * The device is lost. Commands fail at once, and programs hear of it. Memory is given back,
 * and the kernel's work flushed, when the device has confirmed the end of the session.
 */
void vnic_loss_work(struct work_struct *work)
{
	struct vnic_fn *fn = container_of(work, struct vnic_fn, loss);

	if (!READ_ONCE(fn->ending))
		return;
	vnic_admin_abort(fn);
	vnic_ib_event(fn, IB_EVENT_PORT_ERR);
	vnic_ib_event(fn, IB_EVENT_DEVICE_FATAL);
	vnic_iw_lose(fn);
	if (!vnic_await_close(fn))
		return;
	vnic_lose_objects(fn);
	vnic_fn_again(fn);
}

static int vnic_hello(struct vnic_fn *fn)
{
	struct vnic_hello hello = {
		.major = cpu_to_le16(VNIC_VERSION_MAJOR),
		.minor = cpu_to_le16(VNIC_VERSION_MINOR),
		.function = cpu_to_le32(fn->number),
		.features = cpu_to_le64(~0ULL),
		.driver = "vnic.ko",
	};
	struct vnic_hello_reply r;
	int err;

	err = vnic_control_call(fn, VNIC_MSG_HELLO, &hello, sizeof(hello), VNIC_MSG_HELLO_REPLY,
				&r, sizeof(r));
	if (err)
		return err;
	if (r.status) {
		dev_err_ratelimited(&fn->pdev->dev, "the NIC refuses the driver: status %u\n",
				    le32_to_cpu(r.status));
		return -EIO;
	}
	fn->features = le64_to_cpu(r.features);
	return 0;
}

static int vnic_await_ready(struct vnic_fn *fn)
{
	u64 state;
	int err, i;

	for (i = 0; i < 1000; i++) {
		err = vnic_reg_read(fn, VNIC_REG_STATE, 4, &state);
		if (err)
			return err;
		if (state == VNIC_STATE_READY)
			return 0;
		usleep_range(500, 1500);
	}
	return -ETIMEDOUT;
}

static int vnic_enable(struct vnic_fn *fn)
{
	u64 state;
	int err;

	err = vnic_reg_read(fn, VNIC_REG_STATE, 4, &state);
	if (err)
		return err;
	if (state != VNIC_STATE_RESET) {
		err = vnic_reg_write(fn, VNIC_REG_CONTROL, 4, VNIC_CONTROL_RESET);
		if (err)
			return err;
	}
	vnic_admin_start(fn);
	/* Address 0: the queues are the window's blocks. */
	err = vnic_reg_write(fn, VNIC_REG_ADMIN_SQ, 8, 0);
	if (err)
		return err;
	err = vnic_reg_write(fn, VNIC_REG_ADMIN_CQ, 8, 0);
	if (err)
		return err;
	err = vnic_reg_write(fn, VNIC_REG_ADMIN_ENTRIES, 4, fn->admin.entries);
	if (err)
		return err;
	err = vnic_reg_write(fn, VNIC_REG_CONTROL, 4, VNIC_CONTROL_ENABLE);
	if (err)
		return err;
	err = vnic_await_ready(fn);
	if (err)
		return err;
	vnic_admin_open(fn);
	return 0;
}

/* Reads the identity of the function and its limits. */
static int vnic_learn(struct vnic_fn *fn)
{
	struct vnic_query_objects which = { .part = VNIC_CREDIT_LIMIT };
	u64 mac, mtu, link, high, low;
	__be64 gid[2];
	int err, i;

	err = vnic_reg_read(fn, VNIC_REG_MAC, 8, &mac);
	if (err)
		return err;
	err = vnic_reg_read(fn, VNIC_REG_MTU, 4, &mtu);
	if (err)
		return err;
	err = vnic_reg_read(fn, VNIC_REG_LINK_UP, 4, &link);
	if (err)
		return err;
	err = vnic_reg_read(fn, VNIC_REG_GID_HI, 8, &high);
	if (err)
		return err;
	err = vnic_reg_read(fn, VNIC_REG_GID_LO, 8, &low);
	if (err)
		return err;
	err = vnic_command(fn, VNIC_ADMIN_OP_QUERY_DEVICE, NULL, 0, &fn->limits,
			   sizeof(fn->limits));
	if (err)
		return err;
	err = vnic_command(fn, VNIC_ADMIN_OP_QUERY_OBJECTS, &which, sizeof(which), &fn->counts,
			   sizeof(fn->counts));
	if (err)
		return err;
	for (i = 0; i < ETH_ALEN; i++)
		fn->mac[i] = mac >> (8 * i);
	gid[0] = cpu_to_be64(high);
	gid[1] = cpu_to_be64(low);
	memcpy(&fn->gid, gid, sizeof(fn->gid));
	fn->mtu = mtu;
	fn->link_up = link;
	return 0;
}

static int vnic_fn_up(struct vnic_fn *fn)
{
	struct vnic_gid_index own = { 0 };
	int err;

	err = vnic_control_open(fn);
	if (err) {
		dev_warn_ratelimited(&fn->pdev->dev,
				     "the NIC does not answer; it is asked again and again\n");
		goto err_lost;
	}
	err = vnic_hello(fn);
	if (err)
		goto err_lost;
	err = vnic_enable(fn);
	if (err)
		goto err_lost;
	err = vnic_learn(fn);
	if (err)
		goto err_lost;
	if (!(fn->features & VNIC_FEATURE_IWARP)) {
		/* The table has the function's own address at first; ib_core fills it. */
		err = vnic_command(fn, VNIC_ADMIN_OP_DEL_GID, &own, sizeof(own), NULL, 0);
		if (err)
			goto err_lost;
	}
	dev_info(&fn->pdev->dev, "function %#x is up, MAC %pM\n", fn->number, fn->mac);
	return 0;

err_lost:
	vnic_fn_lost(fn, NULL);
	return err;
}

/* Ends the session, and unregisters the ib_device. What the device may still reach is kept. */
void vnic_fn_down(struct vnic_fn *fn, const char *why)
{
	vnic_netdev_part(fn, why);
	vnic_fn_leave(fn);
	fn->up = false;
}

/* Ends the session, if there is one. */
void vnic_fn_leave(struct vnic_fn *fn)
{
	WRITE_ONCE(fn->leaving, true);
	vnic_fn_lost(fn, NULL);
	flush_work(&fn->loss);
	WRITE_ONCE(fn->leaving, false);
}

void vnic_fn_work(struct work_struct *work)
{
	struct vnic_fn *fn = container_of(to_delayed_work(work), struct vnic_fn, work);

	mutex_lock(&fn->lock);
	if (READ_ONCE(fn->stopping))
		goto out;
	vnic_netdev_gone(fn);
	if (READ_ONCE(fn->ending)) {
		queue_work(fn->loss_wq, &fn->loss); /* this work is queued again by it */
		goto out;
	}
	if (READ_ONCE(fn->lost))
		fn->up = false;
	if (!fn->up && !vnic_fn_up(fn)) {
		fn->up = true;
		vnic_netdev_check(fn);
		if (fn->ib && vnic_revive_objects(fn))
			vnic_fn_lost(fn, "it does not take back what it had");
	}
	if (READ_ONCE(fn->lost))
		fn->up = false;
	if (fn->up)
		vnic_netdev_follow(fn);
	else
		mod_delayed_work(fn->wq, &fn->work, VNIC_RETRY);
out:
	mutex_unlock(&fn->lock);
}
