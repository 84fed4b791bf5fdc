/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The program of TestCTakesTheLastMessagesOfAWindow. It is the device of a window as well, which has refused the hello and ended the
 * session before the driver looks. It says what the driver is told, and what after that.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static void answer(uint8_t *ring, uint16_t type, uint64_t tag, const void *body, size_t size)
{
	uint32_t producer = load32(ring + offsetof(struct vnic_queue_header, producer));
	uint8_t *slot = ring + VNIC_QUEUE_HEADER_SIZE + producer * VNIC_WINDOW_MESSAGE_SIZE;
	struct vnic_msg_header h = { .length = (uint32_t)(sizeof h + size), .type = type, .tag = tag };
	memcpy(slot, &h, sizeof h);
	memcpy(slot + sizeof h, body, size);
	store32(ring + offsetof(struct vnic_queue_header, producer), producer + 1);
}

int main(void)
{
	static _Alignas(64) uint8_t control[VNIC_WINDOW_SIZE], regs[VNIC_PAGE_SIZE];
	struct window w = { .control = control, .regs = regs, .session = 5 };
	struct vnic_device *dev = calloc(1, sizeof *dev);
	struct vnic_hello hello = { .major = VNIC_VERSION_MAJOR };
	struct vnic_hello_reply reply = { .status = VNIC_STATUS_BUSY };
	struct vnic_error_msg why = { .code = VNIC_STATUS_BUSY, .reason = "another driver has it" };
	if (!dev)
		return 1;
	dev->win = &w;
	dev->fd = -1; /* nothing interrupts */
	answer(control + VNIC_WINDOW_MESSAGES, VNIC_MSG_HELLO_REPLY, 1, &reply, sizeof reply);
	answer(control + VNIC_WINDOW_MESSAGES, VNIC_MSG_ERROR, 0, &why, sizeof why);
	for (int i = 0; i < 2; i++)
		if (stream_call(dev, VNIC_MSG_HELLO, &hello, sizeof hello, &reply, sizeof reply) < 0)
			printf("%s\n", vnic_error());
	free(dev);
	return 0;
}
