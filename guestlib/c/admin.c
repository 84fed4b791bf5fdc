/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Attaching, registers, and admin commands one at a time (docs/abi sections 2, 3 and 5). */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

enum { ENTRIES = 16, COMMAND_MS = 30000, ADMIN_AREA = VNIC_QUEUE_HEADER_SIZE + ENTRIES * sizeof(struct vnic_admin_cmd) };

/* Features that the library knows what to do with. */
static const uint64_t features = VNIC_FEATURE_EVENT_INDEX | VNIC_FEATURE_ARM_WORD | VNIC_FEATURE_EXTENDED_VERBS | VNIC_FEATURE_FUNCTION_EVENTS;

int read_register(struct vnic_device *dev, uint32_t offset, uint32_t width, uint64_t *value)
{
	struct vnic_reg_read r = { offset, width };
	struct vnic_reg_reply reply;
	if (stream_call(dev, VNIC_MSG_REG_READ, &r, sizeof r, &reply, sizeof reply) < 0)
		return -1;
	*value = reply.value;
	return reply.status ? fail_status(reply.status, "register read") : 0;
}

int write_register(struct vnic_device *dev, uint32_t offset, uint32_t width, uint64_t value)
{
	struct vnic_reg_write w = { offset, width, value };
	struct vnic_reg_reply reply;
	if (stream_call(dev, VNIC_MSG_REG_WRITE, &w, sizeof w, &reply, sizeof reply) < 0)
		return -1;
	return reply.status ? fail_status(reply.status, "register write") : 0;
}

/* Looks whether completion n has been written: its phase is that of the pass over the queue (DEV-702). */
static bool completed(struct vnic_device *dev, uint32_t n, struct vnic_admin_cqe *cqe)
{
	const uint8_t *entry = dev->acq + VNIC_QUEUE_HEADER_SIZE + n % ENTRIES * sizeof *cqe;
	bool phase = load64(entry + VNIC_ADMIN_CQE_TAIL_OFFSET) & VNIC_PHASE;
	if (phase == (n / ENTRIES % 2 != 0))
		return false;
	memcpy(cqe, entry, sizeof *cqe);
	return true;
}

/* Sends a command and waits for its completion. */
static int complete(struct vnic_device *dev, const struct vnic_admin_cmd *cmd, struct vnic_admin_cqe *cqe)
{
	memcpy(dev->asq + VNIC_QUEUE_HEADER_SIZE + dev->commands++ % ENTRIES * sizeof *cmd, cmd, sizeof *cmd);
	store32(dev->asq + offsetof(struct vnic_queue_header, producer), dev->commands); /* before the doorbell (DRV-502) */
	if (ring_doorbell(dev, VNIC_DOORBELL_ADMIN, 0, 0, dev->commands) < 0)
		return -1;
	for (long long end = now_ms() + COMMAND_MS; !completed(dev, dev->completions, cqe);) {
		long long left = end - now_ms();
		if (left <= 0)
			return fail(ETIMEDOUT, "admin command %u: no completion", cmd->opcode);
		if (check_stopped(dev) < 0 || vnic_dispatch(dev, (int)left) < 0) /* MsgCQEvent follows the completion (DEV-505) */
			return -1;
	}
	store32(dev->acq + offsetof(struct vnic_cq_header, consumer), ++dev->completions);
	if (cqe->id != cmd->id)
		return fail(EPROTO, "admin command %u: completion of %u, want %u", cmd->opcode, cqe->id, cmd->id);
	return 0;
}

int admin_do(struct vnic_device *dev, uint16_t opcode, const void *params, size_t size, void *result, size_t result_size)
{
	struct vnic_admin_cmd cmd = { .opcode = opcode, .id = dev->commands };
	struct vnic_admin_cqe cqe;
	if (size)
		memcpy(cmd.params, params, size);
	if (complete(dev, &cmd, &cqe) < 0) {
		dev->unsure = true;
		return -1;
	}
	if (cqe.status)
		return fail_status(cqe.status, "admin command");
	if (result_size)
		memcpy(result, cqe.result, result_size);
	return 0;
}

/* RESET to READY. */
static int enable(struct vnic_device *dev)
{
	uint64_t state;
	memset(dev->asq, 0, ADMIN_AREA); /* DRV-301 */
	memset(dev->acq, 0, ADMIN_AREA);
	dev->commands = dev->completions = 0;
	if (read_register(dev, VNIC_REG_STATE, 4, &state) < 0)
		return -1;
	if (state == VNIC_STATE_DISABLED)
		return fail(EACCES, "the function is disabled; enable it on the host (vnic vf enable)");
	if (state != VNIC_STATE_RESET && write_register(dev, VNIC_REG_CONTROL, 4, VNIC_CONTROL_RESET) < 0)
		return -1;
	dev->stopped = false; /* what stopped it came before the answer (DEV-303) */
	dev->told = true;
	if (write_register(dev, VNIC_REG_ADMIN_SQ, 8, dev->asq_root) < 0 ||
	    write_register(dev, VNIC_REG_ADMIN_CQ, 8, dev->acq_root) < 0 ||
	    write_register(dev, VNIC_REG_ADMIN_ENTRIES, 4, ENTRIES) < 0 || write_register(dev, VNIC_REG_CONTROL, 4, VNIC_CONTROL_ENABLE) < 0)
		return -1;
	for (int tries = 0; tries < 1000; tries++) {
		if (read_register(dev, VNIC_REG_STATE, 4, &state) < 0)
			return -1;
		if (state == VNIC_STATE_READY)
			return 0;
		if (state != VNIC_STATE_INIT)
			return fail(EIO, "the function went to state %u when it was enabled", (unsigned)state);
		poll(NULL, 0, 1);
	}
	return fail(ETIMEDOUT, "the function does not become ready");
}

static int identify(struct vnic_device *dev)
{
	struct vnic_info *i = &dev->info;
	uint64_t function, tenant, mtu, mac, hi, lo;
	if (read_register(dev, VNIC_REG_FUNCTION, 4, &function) < 0 || read_register(dev, VNIC_REG_TENANT, 4, &tenant) < 0 ||
	    read_register(dev, VNIC_REG_MTU, 4, &mtu) < 0 || read_register(dev, VNIC_REG_MAC, 8, &mac) < 0 ||
	    read_register(dev, VNIC_REG_GID_HI, 8, &hi) < 0 || read_register(dev, VNIC_REG_GID_LO, 8, &lo) < 0)
		return -1;
	i->function = (uint32_t)function;
	i->tenant = (uint32_t)tenant;
	i->mtu = (uint32_t)mtu;
	memcpy(i->mac, &mac, sizeof i->mac);
	for (int b = 0; b < 8; b++) {
		i->gid[b] = (uint8_t)(hi >> (56 - 8 * b));
		i->gid[8 + b] = (uint8_t)(lo >> (56 - 8 * b));
	}
	if (admin_do(dev, VNIC_ADMIN_OP_QUERY_DEVICE, NULL, 0, &i->limits, sizeof i->limits) < 0)
		return -1;
	struct vnic_query_objects limit = { .part = VNIC_CREDIT_LIMIT };
	if (admin_do(dev, VNIC_ADMIN_OP_QUERY_OBJECTS, &limit, sizeof limit, &i->quotas, sizeof i->quotas) < 0)
		return -1;
	return 0;
}

/* Memory of an admin queue and its page list, which live as long as the device. */
static uint8_t *admin_area(struct vnic_device *dev, uint64_t *root)
{
	uint8_t *area = vnic_alloc(dev, ADMIN_AREA), levels;
	void *list;
	size_t size;
	return area && page_list(dev, area, ADMIN_AREA, &list, &size, root, &levels) == 0 ? area : NULL;
}

static int attach(struct vnic_device *dev, uint32_t function)
{
	struct vnic_hello hello = { .major = VNIC_VERSION_MAJOR, .minor = VNIC_VERSION_MINOR, .function = function, .features = features,
				    .driver = "libvnic" };
	struct vnic_hello_reply reply;
	if (stream_call(dev, VNIC_MSG_HELLO, &hello, sizeof hello, &reply, sizeof reply) < 0)
		return -1;
	if (reply.status)
		return fail_status(reply.status, "hello");
	dev->info.features = reply.features;
	dev->asq = admin_area(dev, &dev->asq_root);
	dev->acq = admin_area(dev, &dev->acq_root);
	if (!dev->asq || !dev->acq || enable(dev) < 0)
		return -1;
	return identify(dev);
}

static int make_fifo(struct fifo *f, unsigned size)
{
	f->size = size;
	f->ring = calloc(size, sizeof *f->ring);
	return f->ring ? 0 : fail(ENOMEM, "out of memory");
}

/* Frees a device. The memory is the device's until it has ended the session (DEV-208). */
static void release(struct vnic_device *dev)
{
	if (dev->told) {
		stream_send(dev, VNIC_MSG_GOODBYE, 0, NULL, 0);
		for (long long end = now_ms() + 5000; now_ms() < end && vnic_dispatch(dev, 100) >= 0;)
			;
	}
	pci_close(dev);
	if (dev->fd >= 0)
		close(dev->fd);
	arena_close(&dev->arena, dev->told && !dev->ended);
	free(dev->events.ring);
	free(dev->requests.ring);
	free(dev->connections.ring);
	free(dev);
}

struct vnic_device *vnic_open(const char *url, size_t memory)
{
	struct vnic_device *dev = calloc(1, sizeof *dev);
	uint32_t function;
	if (!dev) {
		fail(ENOMEM, "out of memory");
		return NULL;
	}
	dev->fd = -1;
	if (memory < 1 << 20 || memory > 1 << 30)
		fail(EINVAL, "%zu bytes for the device; use 1 MiB to 1 GiB", memory);
	else if (make_fifo(&dev->events, EVENTS) == 0 && make_fifo(&dev->requests, REQUESTS) == 0 && make_fifo(&dev->connections, EVENTS) == 0 &&
		 stream_dial(dev, url, memory, &function) == 0 && attach(dev, function) == 0)
		return dev;
	int err = errno;
	release(dev);
	errno = err;
	return NULL;
}

void vnic_close(struct vnic_device *dev)
{
	if (dev)
		release(dev);
}

const struct vnic_info *vnic_get_info(const struct vnic_device *dev) { return &dev->info; }

int vnic_reset(struct vnic_device *dev)
{
	if (write_register(dev, VNIC_REG_CONTROL, 4, VNIC_CONTROL_RESET) < 0)
		return -1;
	dev->life++;
	dev->unsure = false;
	arena_release(&dev->arena);
	dev->events.count = dev->requests.count = dev->connections.count = 0;
	dev->cqs = NULL; /* nothing of before is the device's any more */
	return enable(dev);
}
