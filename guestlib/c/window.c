/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The window of a function (docs/abi section 10): control messages by its control block, doorbells by its bell ring. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum {
	ROOM_MS = 5000, /* the device takes what waits for it */
	MESSAGES = 1 << VNIC_WINDOW_CONTROL_LOG2,
	BELLS = 1 << VNIC_WINDOW_BELLS_LOG2,
	HEADER = sizeof(struct vnic_queue_header),
	PRODUCER = offsetof(struct vnic_queue_header, producer),
	CONSUMER = offsetof(struct vnic_queue_header, consumer),
	EVENT = offsetof(struct vnic_queue_header, event_index),
	OPEN = offsetof(struct vnic_control_header, open),
	OPENED = offsetof(struct vnic_control_header, opened),
	FULL = offsetof(struct vnic_control_header, full),
};

static void wait_us(long us) { nanosleep(&(struct timespec){ 0, us * 1000 }, NULL); }

/* A register: one plain store. */
static void bell(struct window *w, uint32_t value) { *(volatile uint32_t *)(w->regs + VNIC_WINDOW_DOORBELL) = value; }

static uint8_t *block(const struct window *w, const struct vnic_capability *c, size_t need)
{
	if (c->version != 1 || c->offset % 64 || c->length < need || c->length > w->size || c->offset > w->size - c->length)
		return NULL;
	return w->shared + c->offset;
}

int window_find(struct window *w)
{
	struct vnic_window_header h;
	struct vnic_capability c;
	memcpy(&h, w->shared, sizeof h);
	if (h.magic != VNIC_MAGIC)
		return 0;
	if (h.major != VNIC_VERSION_MAJOR)
		return fail(EPROTO, "the device speaks ABI %u.%u, this driver %u.%u", h.major, h.minor, VNIC_VERSION_MAJOR, VNIC_VERSION_MINOR);
	w->function = h.function;
	for (uint32_t at = h.first_cap; at && at % 8 == 0 && at <= w->size - sizeof c; at = c.next) {
		memcpy(&c, w->shared + at, sizeof c);
		if (c.type == VNIC_CAP_BELLS)
			w->bells = block(w, &c, HEADER + (sizeof(struct vnic_doorbell) << VNIC_WINDOW_BELLS_LOG2));
		if (c.type == VNIC_CAP_CONTROL)
			w->control = block(w, &c, VNIC_WINDOW_MESSAGES + HEADER + (VNIC_WINDOW_MESSAGE_SIZE << VNIC_WINDOW_CONTROL_LOG2));
		if (c.next <= at)
			break;
	}
	return w->bells && w->control ? 1 : 0;
}

int window_busy(const struct window *w) { return load32(w->control + OPENED) != 0; }

int window_open(struct window *w)
{
	do {
		if (getrandom(&w->session, sizeof w->session, 0) != sizeof w->session)
			return fail(errno, "getrandom: %s", strerror(errno));
	} while (!w->session || w->session == load32(w->control + OPENED) || w->session == load32(w->control + OPEN));
	store32(w->control + OPEN, w->session);
	bell(w, VNIC_WINDOW_DOORBELL_CONTROL);
	for (long long end = now_ms() + OPEN_MS; load32(w->control + OPENED) != w->session; wait_us(200))
		if (now_ms() > end)
			return fail(ETIMEDOUT, "the device opens no session; is the NIC running?");
	w->bell = w->request = w->message = 0; /* DRV-1012 */
	return 0;
}

static bool open_still(const struct window *w) { return load32(w->control + OPENED) == w->session; }

bool window_leave(struct window *w)
{
	if (!w->control || !w->session)
		return true;
	store32(w->control + OPEN, 0);
	bell(w, VNIC_WINDOW_DOORBELL_CONTROL);
	for (long long end = now_ms() + OPEN_MS; open_still(w) && now_ms() < end;)
		wait_us(200);
	return !open_still(w);
}

/* Waits until a ring has room for one more, ringing the device meanwhile. */
static int room(struct window *w, const uint8_t *ring, uint32_t next, uint32_t size, uint32_t value)
{
	for (long long end = now_ms() + ROOM_MS; next - load32(ring + CONSUMER) >= size; wait_us(50)) {
		if (!open_still(w))
			return fail(ECONNRESET, "the device is gone: it ended the session; open it again");
		if (now_ms() > end)
			return fail(ETIMEDOUT, "the device takes no messages");
		bell(w, value);
	}
	return 0;
}

/* Publishes one more entry, and rings if the device sleeps (DRV-1003). */
static void publish(struct window *w, uint8_t *ring, uint32_t next, uint32_t value)
{
	store32(ring + PRODUCER, next);
	full_barrier();
	if (next - load32(ring + EVENT) - 1 < 1)
		bell(w, value);
}

int window_send(struct window *w, const void *message, size_t size)
{
	uint8_t *ring = w->control + VNIC_WINDOW_REQUESTS;
	if (size > VNIC_WINDOW_MESSAGE_SIZE)
		return fail(EINVAL, "a control message of %zu bytes", size);
	if (room(w, ring, w->request, MESSAGES, VNIC_WINDOW_DOORBELL_CONTROL) < 0)
		return -1;
	memcpy(ring + HEADER + (size_t)(w->request % MESSAGES) * VNIC_WINDOW_MESSAGE_SIZE, message, size);
	publish(w, ring, ++w->request, VNIC_WINDOW_DOORBELL_CONTROL);
	return 0;
}

int window_ring(struct window *w, const struct vnic_doorbell *d)
{
	if (room(w, w->bells, w->bell, BELLS, 0) < 0)
		return -1;
	memcpy(w->bells + HEADER + (size_t)(w->bell % BELLS) * sizeof *d, d, sizeof *d);
	publish(w, w->bells, ++w->bell, 0);
	return 0;
}

/* Takes one message of the device, at most size bytes: its length, or 0 if there is none. */
static ssize_t take(struct window *w, void *to, size_t size)
{
	uint8_t *ring = w->control + VNIC_WINDOW_MESSAGES, m[VNIC_WINDOW_MESSAGE_SIZE];
	struct vnic_msg_header h;
	bool open = open_still(w); /* read before the ring: the last messages come before the end, as why the device refuses (DEV-202) */
	if (load32(ring + PRODUCER) == w->message) {
		if (!open)
			return fail(ECONNRESET, "the device is gone: it ended the session; open it again");
		store32(ring + EVENT, w->message);
		full_barrier(); /* DRV-1009 */
		if (load32(ring + PRODUCER) == w->message)
			return 0;
	}
	memcpy(m, ring + HEADER + (size_t)(w->message % MESSAGES) * VNIC_WINDOW_MESSAGE_SIZE, sizeof m);
	memcpy(&h, m, sizeof h);
	if (h.length < sizeof h || h.length > sizeof m || h.length > size)
		return fail(EPROTO, "a message of %u bytes", h.length);
	memcpy(to, m, h.length);
	w->message++;
	if (!open)
		return h.length; /* the ring may be of another session soon (DRV-1012) */
	store32(ring + CONSUMER, w->message);
	full_barrier(); /* DRV-1015 */
	if (load32(w->control + FULL))
		bell(w, VNIC_WINDOW_DOORBELL_CONTROL);
	return h.length;
}

ssize_t window_receive(struct window *w, int fd, void *to, size_t size, int timeout_ms)
{
	for (long long end = now_ms() + timeout_ms;;) {
		ssize_t n = take(w, to, size);
		if (n || !timeout_ms)
			return n;
		long long left = timeout_ms < 0 ? -1 : end - now_ms();
		if (timeout_ms > 0 && left <= 0)
			return 0;
		struct pollfd p = { fd, POLLIN, 0 };
		if (poll(&p, 1, (int)left) < 0 && errno != EINTR)
			return fail(errno, "poll: %s", strerror(errno));
		uint64_t count; /* of interrupts, or of looks that a timer asks for */
		if (p.revents && read(fd, &count, sizeof count) < 0 && errno != EAGAIN)
			return fail(errno, "interrupt: %s", strerror(errno));
	}
}
