/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The control stream: how it comes about (docs/attach.md), and messages on it (docs/abi section 2). */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <linux/vm_sockets.h>
#include <unistd.h>

#include "internal.h"

enum { CALL_MS = 30000, FIRST_ADDR = 0x10000 };

static int write_all(int fd, const void *p, size_t size)
{
	for (const uint8_t *b = p; size;) {
		ssize_t n = send(fd, b, size, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail(errno, "control stream: %s", strerror(errno));
		b += n;
		size -= (size_t)n;
	}
	return 0;
}

/* Gives the device the memfd: the preamble of docs/attach.md, and its answer. */
static int offer_memory(struct vnic_device *dev)
{
	struct {
		char magic[8];
		uint32_t regions, zero;
		uint64_t addr, size, offset;
	} p = { { 'V', 'N', 'I', 'C', 'M', 'E', 'M', '1' }, 1, 0, FIRST_ADDR, dev->arena.pages * VNIC_PAGE_SIZE, 0 };
	struct iovec v = { &p, sizeof p };
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &dev->arena.memfd, sizeof(int));
	if (sendmsg(dev->fd, &m, MSG_NOSIGNAL) != (ssize_t)sizeof p)
		return fail(errno, "memory offered to the device: %s", strerror(errno));
	uint32_t answer[2];
	char reason[256] = "";
	if (recv(dev->fd, answer, sizeof answer, MSG_WAITALL) != (ssize_t)sizeof answer)
		return fail(EPROTO, "memory offered to the device: no answer");
	size_t n = answer[1] < sizeof reason ? answer[1] : sizeof reason - 1;
	if (n && recv(dev->fd, reason, n, MSG_WAITALL) != (ssize_t)n)
		return fail(EPROTO, "memory offered to the device: no reason");
	return answer[0] ? fail(EINVAL, "memory offered to the device: %s", reason) : 0;
}

int stream_dial(struct vnic_device *dev, const char *url, size_t memory, uint32_t *function)
{
	char buf[160];
	if (snprintf(buf, sizeof buf, "%s", url) >= (int)sizeof buf)
		return fail(EINVAL, "%s: too long", url);
	char *query = strchr(buf, '?');
	*function = VNIC_FUNCTION_ASSIGNED;
	if (query) {
		*query++ = 0;
		if (sscanf(query, "function=%i", (int *)function) != 1)
			return fail(EINVAL, "%s: write ?function=0x10001 for VF 1 of PF 0 of host 1", url);
	}
	if (!strncmp(buf, "unix://", 7)) {
		struct sockaddr_un a = { .sun_family = AF_UNIX };
		if (snprintf(a.sun_path, sizeof a.sun_path, "%s", buf + 7) >= (int)sizeof a.sun_path)
			return fail(EINVAL, "%s: the path is longer than %zu bytes", url, sizeof a.sun_path - 1);
		dev->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (dev->fd < 0 || connect(dev->fd, (struct sockaddr *)&a, sizeof a) < 0)
			return fail(errno, "%s: %s; is the NIC running?", url, strerror(errno));
		if (arena_memfd(&dev->arena, memory, FIRST_ADDR) < 0)
			return -1;
		return offer_memory(dev);
	}
	if (!strncmp(buf, "pci://", 6))
		return pci_dial(dev, buf[6] ? buf + 7 : "", memory, *function); /* pci:///0000:00:08.0 */
	struct sockaddr_vm a = { .svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_HOST, .svm_port = VNIC_PORT };
	if (strcmp(buf, "vsock") && sscanf(buf, "vsock://%u:%u", &a.svm_cid, &a.svm_port) != 2)
		return fail(EINVAL, "%s: write vsock://2:7000, pci:// or unix:///PATH", url);
	dev->fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
	/* The kernel would give up after 2 s, but a NIC that failed repeatedly needs longer to start again. */
	setsockopt(dev->fd, AF_VSOCK, SO_VM_SOCKETS_CONNECT_TIMEOUT, &(struct timeval){ .tv_sec = OPEN_MS / 1000 }, sizeof(struct timeval));
	if (dev->fd < 0 || connect(dev->fd, (struct sockaddr *)&a, sizeof a) < 0)
		return fail(errno, "%s: %s; has the guest a vsock device, and is the NIC running?", url, strerror(errno));
	return arena_pin(&dev->arena, memory);
}

int stream_send(struct vnic_device *dev, uint16_t type, uint64_t tag, const void *body, size_t size)
{
	uint8_t m[256];
	struct vnic_msg_header h = { .length = (uint32_t)(sizeof h + size), .type = type, .tag = tag };
	memcpy(m, &h, sizeof h);
	if (size)
		memcpy(m + sizeof h, body, size);
	if (dev->win)
		return window_send(dev->win, m, sizeof h + size);
	return write_all(dev->fd, m, sizeof h + size);
}

int ring_doorbell(struct vnic_device *dev, uint8_t kind, uint8_t flags, uint32_t queue, uint32_t index)
{
	struct vnic_doorbell d = { .kind = kind, .flags = flags, .queue = queue, .index = index };
	return dev->win ? window_ring(dev->win, &d) : stream_send(dev, VNIC_MSG_DOORBELL, 0, &d, sizeof d);
}

void fifo_put(struct fifo *f, const struct vnic_async_event *e)
{
	if (f->count == f->size) { /* the oldest goes */
		f->head = (f->head + 1) % f->size;
		f->count--;
	}
	f->ring[(f->head + f->count++) % f->size] = *e;
}

int fifo_take(struct fifo *f, struct vnic_async_event *e)
{
	if (!f->count)
		return 0;
	*e = f->ring[f->head];
	f->head = (f->head + 1) % f->size;
	f->count--;
	return 1;
}

static struct vnic_cq *find_cq(struct vnic_device *dev, uint32_t cqn)
{
	struct vnic_cq *cq = dev->cqs;
	while (cq && cq->cqn != cqn)
		cq = cq->next_cq;
	return cq;
}

int check_stopped(const struct vnic_device *dev)
{
	return dev->stopped ? fail(ECONNABORTED, "the function was stopped, by a fault or by the host: call vnic_reset") : 0;
}

/* Notes what ends waiting (DEV-304, DRV-307, DEV-705), and keeps the event for who takes it. */
static void async_event(struct vnic_device *dev, const struct vnic_async_event *e)
{
	struct vnic_cq *cq = e->type == VNIC_EVENT_CQ_ERROR ? find_cq(dev, e->number) : NULL;
	if (cq)
		cq->failed = true;
	dev->stopped |= e->type == VNIC_EVENT_FUNCTION_FAULT || e->type == VNIC_EVENT_FUNCTION_STATE;
	switch (e->type) {
	case VNIC_EVENT_CONNECT_REQUEST:
		fifo_put(&dev->requests, e);
		break;
	case VNIC_EVENT_ESTABLISHED:
	case VNIC_EVENT_REJECTED:
	case VNIC_EVENT_UNREACHABLE:
		fifo_put(&dev->connections, e);
		break;
	case VNIC_EVENT_DISCONNECTED: /* for a program, and for who waits that it be established */
		fifo_put(&dev->connections, e);
		/* fall through */
	default:
		fifo_put(&dev->events, e);
	}
}

static int handle(struct vnic_device *dev, const struct vnic_msg_header *h, const uint8_t *body, size_t size)
{
	struct vnic_async_event e;
	struct vnic_error_msg error;
	switch (h->type) {
	case VNIC_MSG_HELLO_REPLY:
	case VNIC_MSG_REG_REPLY:
		if (h->tag == dev->tag && size && size <= sizeof dev->answer) {
			memcpy(dev->answer, body, size);
			dev->answered = size;
		}
		return 0;
	case VNIC_MSG_CQ_EVENT:
		for (; size >= 4; body += 4, size -= 4) {
			uint32_t cqn;
			memcpy(&cqn, body, 4);
			struct vnic_cq *cq = find_cq(dev, cqn);
			if (cq)
				cq->event = true;
		}
		return 0;
	case VNIC_MSG_ASYNC_EVENT:
		if (size < sizeof e)
			return fail(EPROTO, "an event of %zu bytes", size);
		memcpy(&e, body, sizeof e);
		async_event(dev, &e);
		return 0;
	case VNIC_MSG_ERROR:
		memset(&error, 0, sizeof error);
		memcpy(&error, body, size < sizeof error ? size : sizeof error);
		return fail(EPROTO, "the device ends the session: %.*s", (int)sizeof error.reason, error.reason);
	}
	return 0; /* a newer device's */
}

int vnic_fd(const struct vnic_device *dev) { return dev->fd; }

/* Reads what there is, waiting up to timeout_ms for the first of it: how many bytes, 0 after that time. */
static ssize_t receive(struct vnic_device *dev, int timeout_ms)
{
	uint8_t *to = dev->in + dev->have;
	size_t size = sizeof dev->in - dev->have;
	if (dev->win) {
		ssize_t got = window_receive(dev->win, dev->fd, to, size, timeout_ms);
		dev->ended |= got < 0 && errno == ECONNRESET;
		return got;
	}
	struct pollfd p = { dev->fd, POLLIN, 0 };
	int ready;
	do
		ready = poll(&p, 1, timeout_ms);
	while (ready < 0 && errno == EINTR);
	if (ready <= 0)
		return ready ? fail(errno, "poll: %s", strerror(errno)) : 0;
	ssize_t n = recv(dev->fd, to, size, 0);
	dev->ended |= n == 0 || (n < 0 && errno == ECONNRESET);
	if (n <= 0)
		return fail(ECONNRESET, "the device is gone: %s; open it again", n ? strerror(errno) : "it closed the stream");
	return n;
}

int vnic_dispatch(struct vnic_device *dev, int timeout_ms)
{
	int handled = 0;
	for (;;) {
		ssize_t n = receive(dev, handled ? 0 : timeout_ms);
		if (n < 0)
			return -1;
		if (!n)
			return handled;
		dev->have += (size_t)n;
		size_t at = 0;
		for (struct vnic_msg_header h; dev->have - at >= sizeof h; at += h.length, handled = 1) {
			memcpy(&h, dev->in + at, sizeof h);
			if (h.length < sizeof h || h.length > sizeof dev->in)
				return fail(EPROTO, "a message of %u bytes", h.length);
			if (dev->have - at < h.length)
				break;
			if (handle(dev, &h, dev->in + at + sizeof h, h.length - sizeof h) < 0)
				return -1;
		}
		memmove(dev->in, dev->in + at, dev->have -= at);
	}
}

int stream_call(struct vnic_device *dev, uint16_t type, const void *body, size_t size, void *reply, size_t reply_size)
{
	static uint64_t tags;
	dev->tag = ++tags;
	dev->answered = 0;
	if (stream_send(dev, type, dev->tag, body, size) < 0)
		return -1;
	for (long long end = now_ms() + CALL_MS; !dev->answered;) {
		long long left = end - now_ms();
		if (left <= 0)
			return fail(ETIMEDOUT, "the device does not answer");
		if (vnic_dispatch(dev, (int)left) < 0)
			return -1;
	}
	memset(reply, 0, reply_size);
	memcpy(reply, dev->answer, dev->answered < reply_size ? dev->answered : reply_size);
	return 0;
}

int vnic_get_event(struct vnic_device *dev, struct vnic_async_event *event, int timeout_ms)
{
	for (long long end = now_ms() + timeout_ms;;) {
		if (fifo_take(&dev->events, event))
			return 1;
		long long left = timeout_ms < 0 ? -1 : end - now_ms();
		if (timeout_ms >= 0 && left < 0)
			left = 0;
		int n = vnic_dispatch(dev, (int)left);
		if (n < 0)
			return -1;
		if (!n && timeout_ms >= 0)
			return 0;
	}
}
