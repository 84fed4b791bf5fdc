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

// Owner is what its connections, and the packets on them, need of a function.
type Owner struct {
	*pfvf.Function
	Trace    *trace.Ring   // of what happens to its requests; nil: nobody traces it
	Describe func() string // names it and who drives it, for logs
}

// Keys protect the packets of one connection. Whoever seals and opens packets knows what is in
// them.
type Keys interface {
	Release() // the connection is over
}

// Slot is what the CID of an open connection leads to. Packets read it; only the table changes it.
type Slot struct {
	CID   uint32
	ID    uint32       // of the connection manager; 0: a queue pair connected with itself
	Conn  *falcon.Conn // the transport's end, or
	Loop  *local.Conn  // one end inside the shard
	Owner *Owner
	Keys  Keys // nil inside the NIC, of one shard or between two

	Peer     cm.HostID
	Underlay netip.Addr     // of the peer
	Inner    underlay.Inner // as we send: from the address of our function that was named to the peer's
	Credits  *credit.Node   // the connection's, below its function's

	user     User
	flow     uint32 // picks the first path
	draining bool   // its driver disconnected it
	parting  bool   // the connection manager knows that it has ended
	leaving  bool   // it parts, and its user has it still
}

// Ended is a connection that ended on this side, of which the connection manager does not know yet.
// With an ID of 0 there is only a CID to give back.
type Ended struct {
	Function uint32
	ID       uint32
	CID      uint32
}

// ended names the connection for the connection manager.
func (s *Slot) ended() Ended { return Ended{Function: uint32(s.Owner.ID), ID: s.ID, CID: s.CID} }

// Path is the path that the connection takes now (docs/wire.md). One that the transport repaths
// moves to the next.
func (s *Slot) Path() uint32 { return s.flow + uint32(s.Conn.Path()) }

// carrier is what the connection is made over.
func (s *Slot) carrier() rof.Carrier {
	if s.Loop != nil {
		return s.Loop
	}
	return s.Conn
}

// Explain says for people whose an RDMA packet is that the connection sent (out) or got.
func (s *Slot) Explain(rdmaPacket []byte, out bool) string {
	return s.user.Explain(rdmaPacket, out)
}

// open reports whether a connection is in the slot.
func (s *Slot) open() bool { return s.Conn != nil || s.Loop != nil }

// close ends the connection at once and takes it out of its slot.
func (s *Slot) close(now falcon.Time) {
	s.carrier().Close(now)
	s.clear()
}

// clear takes the connection out of its slot.
func (s *Slot) clear() {
	if s.Keys != nil {
		s.Keys.Release()
	}
	*s = Slot{}
}

// LongPathNote says what is wrong with a path on which congestion control holds a connection at a
// packet per round trip, and the remedy.
func LongPathNote(i falcon.ConnInfo) string {
	return fmt.Sprintf("delay %v is above the target of %v with one packet in flight; raise falcon.cc.base_delay_target above the path's round trip",
		time.Duration(i.Delay).Round(time.Microsecond), time.Duration(i.DelayTarget).Round(time.Microsecond))
}
