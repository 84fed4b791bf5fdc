package conn

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma/local"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// Owner holds what connections and their packets need to know of their function.
type Owner struct {
	*pfvf.Function
	Trace    *trace.Ring   // records events of its requests; nil: no trace
	Describe func() string // describes it and its driver, for logs
}

// Keys protects the packets of one connection. The code that seals and opens packets knows the
// concrete type.
type Keys interface {
	Release() // called when the connection ends
}

// Slot describes the open connection of a CID. Packet processing reads it; only the table changes
// it.
type Slot struct {
	CID   uint32
	ID    uint32       // the connection manager's id; 0: a queue pair connected with itself
	Conn  *falcon.Conn // the transport's end, or
	Loop  *local.Conn  // one end of a loopback in the shard
	Owner *Owner
	Keys  Keys // nil inside the NIC, within one shard or between two

	Peer     cm.HostID
	Underlay netip.Addr     // of the peer
	Inner    underlay.Inner // inner header of sent packets; Src is the address of our function that the peer knows
	Credits  *credit.Node   // the connection's, below its function's

	user     User
	flow     uint32 // determines the first path
	draining bool   // its driver disconnected it
	parting  bool   // the connection manager knows that it has ended
	leaving  bool   // it parts, and its user still has it
}

// Ended is a connection that ended in this shard, and that the connection manager does not know has
// ended. With ID 0, only the CID is to be released.
type Ended struct {
	Function uint32
	ID       uint32
	CID      uint32
}

// ended identifies the connection for the connection manager.
func (s *Slot) ended() Ended { return Ended{Function: uint32(s.Owner.ID), ID: s.ID, CID: s.CID} }

// Path returns the connection's current path (docs/wire.md). When the transport repaths, it moves
// to the next path.
func (s *Slot) Path() uint32 { return s.flow + uint32(s.Conn.Path()) }

// carrier returns the transport or loopback end under the connection.
func (s *Slot) carrier() rof.Carrier {
	if s.Loop != nil {
		return s.Loop
	}
	return s.Conn
}

// Explain describes, for people, who owns an RDMA packet that the connection sent (out) or
// received.
func (s *Slot) Explain(rdmaPacket []byte, out bool) string {
	return s.user.Explain(rdmaPacket, out)
}

// open reports whether a connection is in the slot.
func (s *Slot) open() bool { return s.Conn != nil || s.Loop != nil }

// close ends the connection at once and clears its slot.
func (s *Slot) close(now falcon.Time) {
	s.carrier().Close(now)
	s.clear()
}

// clear releases the keys and clears the slot.
func (s *Slot) clear() {
	if s.Keys != nil {
		s.Keys.Release()
	}
	*s = Slot{}
}

// LongPathNote describes a path on which congestion control holds a connection to one packet per
// round trip, and the remedy.
func LongPathNote(i falcon.ConnInfo) string {
	return fmt.Sprintf("delay %v is above the target of %v with one packet in flight; raise falcon.cc.base_delay_target above the path's round trip",
		time.Duration(i.Delay).Round(time.Microsecond), time.Duration(i.DelayTarget).Round(time.Microsecond))
}
