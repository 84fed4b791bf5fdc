/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "internal.h"

static _Thread_local char text[512];

const char *vnic_error(void) { return text; }

int fail(int err, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	errno = err;
	return -1;
}

/* By enum vnic_status: what it means, and the errno that a kernel driver would return. */
static const struct {
	const char *text;
	int err;
} statuses[] = {
	[VNIC_STATUS_OK] = { "success", 0 },
	[VNIC_STATUS_INVALID_ARGUMENT] = { "a parameter is out of its range or contradicts another", EINVAL },
	[VNIC_STATUS_NO_RESOURCES] = { "a limit of the function or of the NIC is reached", ENOMEM },
	[VNIC_STATUS_NOT_FOUND] = { "this function has no such object", ENOENT },
	[VNIC_STATUS_BUSY] = { "in use by others; destroy those first, or detach the other driver", EBUSY },
	[VNIC_STATUS_BAD_STATE] = { "not in a state that allows it", EPROTO },
	[VNIC_STATUS_DENIED] = { "not allowed: the function is not assigned to this guest, is disabled, or may not do that", EACCES },
	[VNIC_STATUS_UNSUPPORTED] = { "this device cannot do it", EOPNOTSUPP },
	[VNIC_STATUS_MEMORY_FAULT] = { "an address lies outside the memory the function may use", EFAULT },
	[VNIC_STATUS_UNKNOWN_COMMAND] = { "the device does not know the command; update it", ENOSYS },
	[VNIC_STATUS_TIMEOUT] = { "no answer in time", ETIMEDOUT },
	[VNIC_STATUS_UNREACHABLE] = { "no NIC is known for that address in this tenant, or it cannot be reached", EHOSTUNREACH },
	[VNIC_STATUS_ADDRESS_IN_USE] = { "the service has a listener already", EADDRINUSE },
	[VNIC_STATUS_TOO_LARGE] = { "a length or count is above its limit", E2BIG },
	[VNIC_STATUS_REFUSED] = { "the peer has no listener or said no", ECONNREFUSED },
	[VNIC_STATUS_VERSION_MISMATCH] = { "the device speaks another version of the ABI; update the older of both", EPROTO },
	[VNIC_STATUS_ABORTED] = { "a reset or fault of the function ended it", ECONNABORTED },
};

int fail_status(uint32_t status, const char *what)
{
	if (status < sizeof statuses / sizeof *statuses)
		return fail(statuses[status].err, "%s: %s", what, statuses[status].text);
	return fail(EIO, "%s: status %u, which this driver does not know", what, status);
}

long long now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}
