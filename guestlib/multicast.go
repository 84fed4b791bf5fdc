package guestlib

import (
	"context"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// GroupQPN is the RemoteQPN of datagrams to a multicast group. Their address handle has the group's
// GID.
const GroupQPN = abi.GroupQPN

// AttachMcast makes a UD queue pair receive the datagrams to a multicast group, also those that
// this function sends. A group belongs to the tenant; the functions of the tenant that have a port
// can send to each other.
func (q *QP) AttachMcast(ctx context.Context, group GID) error {
	return q.pd.admin.do(ctx, abi.AdminOpAttachMcast, &abi.Mcast{QPN: q.qpn, GID: group}, nil, nil)
}

// DetachMcast undoes AttachMcast. Destroying the queue pair does that, too.
func (q *QP) DetachMcast(ctx context.Context, group GID) error {
	return q.pd.admin.do(ctx, abi.AdminOpDetachMcast, &abi.Mcast{QPN: q.qpn, GID: group}, nil, nil)
}
