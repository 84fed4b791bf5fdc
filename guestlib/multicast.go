package guestlib

import (
	"context"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// GroupQPN is the RemoteQPN of datagrams to a multicast group, whose GID their address has.
const GroupQPN = abi.GroupQPN

// AttachMcast has a queue pair of type UD receive the datagrams to a multicast group, also those
// that are sent from here. Groups are the tenant's: all functions with a port reach each other.
func (q *QP) AttachMcast(ctx context.Context, group GID) error {
	return q.pd.admin.do(ctx, abi.AdminOpAttachMcast, &abi.Mcast{QPN: q.qpn, GID: group}, nil, nil)
}

// DetachMcast ends that. Destroying the queue pair does, too.
func (q *QP) DetachMcast(ctx context.Context, group GID) error {
	return q.pd.admin.do(ctx, abi.AdminOpDetachMcast, &abi.Mcast{QPN: q.qpn, GID: group}, nil, nil)
}
