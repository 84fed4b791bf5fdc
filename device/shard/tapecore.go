package shard

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/pathmtu"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// What passes between a shard with a tape and its core: tapedCore passes what the shard asks through the
// tape; what the core orders is an event on it.

// tapedCore is the core of a shard with a tape. Without a core below it, the tape plays.
type tapedCore struct {
	Core
	t      *tape.Tape
	cfg    *config.Config
	routes *gateway.Routes   // a copy that changes only between the events on the tape
	follow *gateway.Follower // what changes it; nil: the tape does
	node   *credit.Node      // of the host

	asked  uint64 // questions so far
	thens  map[uint64]func(error)
	visits map[uint64]func(abi.Status, abi.Result) // visits, by question
}

var _ Core = (*tapedCore)(nil)

func newTapedCore(core Core, cfg *config.Config, t *tape.Tape) *tapedCore {
	c := &tapedCore{Core: core, t: t, cfg: cfg, thens: map[uint64]func(error){}, visits: map[uint64]func(abi.Status, abi.Result){}}
	if core != nil {
		c.routes, c.follow = core.Routes().Follow()
		c.node = core.Credits()
		c.node.UseTape(t)
		return c
	}
	c.routes = gateway.NewRoutes(cfg.Uplink.MTU - cfg.SealedOverhead())
	nic, host := credit.NewPool(cfg.Credits.NIC.Cost(), cfg.NIC.Shards), credit.NewPool(cfg.Credits.Host.Cost(), cfg.NIC.Shards)
	c.node = host.Node(nic.Node(nil, 0), 0)
	c.node.UseTape(t)
	return c
}

// tapeRoutes applies the changes of routes that wait, and writes them down.
func (s *Shard) tapeRoutes() {
	c, ok := s.core.(*tapedCore)
	if !ok || c.follow == nil {
		return
	}
	for _, is := range c.follow.Take() {
		if c.t.Event(tape.Routes) {
			c.t.PutValue(is)
		}
		c.routes.Apply(&is)
	}
}

func (c *tapedCore) Routes() *gateway.Routes { return c.routes }

func (c *tapedCore) Credits() *credit.Node { return c.node }

func (c *tapedCore) Opener() *security.Opener {
	if c.Core == nil {
		return security.PlayedOpener(c.cfg.PSP.Mode == config.PSPTransport, c.t)
	}
	o := c.Core.Opener()
	o.UseTape(c.t, openedHead)
	return o
}

// placed is a function's settings on the tape.
type placed struct {
	ID   pfvf.ID
	Here bool
	Is   config.Function
}

func (c *tapedCore) Functions(f func(id pfvf.ID, here bool, is *config.Function)) {
	var list []placed
	if c.Core != nil {
		c.Core.Functions(func(id pfvf.ID, here bool, is *config.Function) { list = append(list, placed{id, here, *is}) })
	}
	if c.t.Ask(tape.Functions) {
		c.t.PutValue(list)
	} else {
		c.t.Value(&list)
	}
	for i := range list {
		f(list[i].ID, list[i].Here, &list[i].Is)
	}
}

// Find is asked by operators only, and is not on the tape.
func (c *tapedCore) Find(id pfvf.ID) error {
	if c.Core == nil {
		return fmt.Errorf("function %s is not of this NIC", id)
	}
	return c.Core.Find(id)
}

func (c *tapedCore) Knows(tenant uint32, gid [16]byte) bool {
	return c.t.Bool(tape.Knows, c.Core != nil && c.Core.Knows(tenant, gid))
}

func (c *tapedCore) Ask(r conn.Request) {
	c.t.OutValue(tape.Core, "ask", r)
	if c.Core != nil {
		c.Core.Ask(r)
	}
}

func (c *tapedCore) RequestRekey(u security.Use, spi uint32) error {
	c.t.OutValue(tape.Core, "rekey", keyOrder{u, cm.SA{SPI: spi}})
	if c.Core == nil {
		return nil
	}
	return c.Core.RequestRekey(u, spi)
}

func (c *tapedCore) SPIRefused(u security.Use) {
	c.t.OutUint(tape.Core, uint64(u.Tenant))
	if c.Core != nil {
		c.Core.SPIRefused(u)
	}
}

func (c *tapedCore) PathAnswered(peer cm.PeerID, size int, round uint32) {
	c.t.OutUint(tape.Core, uint64(peer))
	c.t.OutUint(tape.Core, uint64(size)<<32|uint64(round))
	if c.Core != nil {
		c.Core.PathAnswered(peer, size, round)
	}
}

func (c *tapedCore) PathUsed(peer cm.PeerID) {
	c.t.OutUint(tape.Core, uint64(peer))
	if c.Core != nil {
		c.Core.PathUsed(peer)
	}
}

func (c *tapedCore) PeerMoved(peer cm.PeerID, at netip.AddrPort) {
	c.t.OutValue(tape.Core, "moved", peerOrder{Peer: peer, Underlay: at})
	if c.Core != nil {
		c.Core.PeerMoved(peer, at)
	}
}

func (c *tapedCore) SetPort(function uint32, at gateway.Place) {
	c.t.OutValue(tape.Core, "port", gateway.PlacedPort{Function: function, Place: at})
	if c.Core != nil {
		c.Core.SetPort(function, at)
	}
}

func (c *tapedCore) RemovePort(function uint32) {
	c.t.OutUint(tape.Core, uint64(function))
	if c.Core != nil {
		c.Core.RemovePort(function)
	}
}

func (c *tapedCore) Withdraw(id pfvf.ID) {
	c.t.OutUint(tape.Core, uint64(id))
	if c.Core != nil {
		c.Core.Withdraw(id)
	}
}

func (c *tapedCore) ResetVFs(pf pfvf.ID) {
	c.t.OutUint(tape.Core, uint64(pf))
	if c.Core != nil {
		c.Core.ResetVFs(pf)
	}
}

// question begins a question to the core. It returns the function that the core calls with the
// answer, which calls then.
func (c *tapedCore) question(then func(error)) func(error) {
	c.asked++
	n := c.asked
	if c.Core == nil {
		c.thens[n] = then
		return nil
	}
	return func(err error) {
		if c.t.Event(tape.Answer) {
			c.t.PutUint(n)
			c.t.PutValue(tapeError(err))
		}
		then(err)
	}
}

func (c *tapedCore) Change(vf pfvf.ID, edit functions.Edit, then func(error)) {
	c.t.OutUint(tape.Core, uint64(vf))
	if then = c.question(then); then != nil {
		c.Core.Change(vf, edit, then)
	}
}

func (c *tapedCore) Announce(id pfvf.ID, add, drop [16]byte, then func(error)) {
	c.t.Out(tape.Core, add[:])
	c.t.Out(tape.Core, drop[:])
	if then = c.question(then); then != nil {
		c.Core.Announce(id, add, drop, then)
	}
}

// Visit passes through the tape what the VF's shard answers. What it did there is on that
// shard's tape.
func (c *tapedCore) Visit(vf pfvf.ID, f func(abi.VFHandler) (abi.Status, abi.Result), then func(abi.Status, abi.Result)) {
	c.t.OutUint(tape.Core, uint64(vf))
	c.asked++
	n := c.asked
	if c.Core == nil {
		c.visits[n] = then
		return
	}
	c.Core.Visit(vf, f, func(st abi.Status, r abi.Result) {
		if c.t.Event(tape.VFAnswer) {
			var raw rawResult
			if r != nil {
				r.Marshal(raw[:])
			}
			c.t.PutUint(n)
			c.t.PutUint(uint64(st))
			c.t.PutBytes(raw[:])
		}
		then(st, r)
	})
}

// rawResult is the result of a command as a tape has it.
type rawResult [len(abi.AdminCQE{}.Result)]byte

// Marshal implements abi.Result.
func (r rawResult) Marshal(b []byte) { copy(b, r[:]) }

func (c *tapedCore) Flush() bool { return c.Core != nil && c.Core.Flush() }

// order is an order of the core on the tape. One field is set.
type order struct {
	Answer     *answerOrder
	Decide     *decideOrder
	TakeKey    *keyOrder
	ForgetKeys *cm.PeerID
	SetPeer    *peerOrder
	RemovePeer *cm.PeerID
	LimitPath  *limitOrder
	PeerPorts  *cm.PeerID
	Resolve    *netip.AddrPort
	Probe      *probeOrder
	Set        *setOrder
	Reset      *pfvf.ID
	ResetVF    *pfvf.ID // by its PF
	ResetVFs   *pfvf.ID
	VFsEnabled *vfsOrder
	PFLink     *linkOrder
}

type answerOrder struct {
	Question conn.Question
	ID       uint32
	Err      *tapedError
}

type decideOrder struct {
	Output   cm.Output // without keys
	Epoch    uint32
	Underlay netip.AddrPort
	Receives *cm.Use // the use of the key that packets come with
}

type keyOrder struct {
	Use cm.Use
	SA  cm.SA // without its key
}

type peerOrder struct {
	Peer     cm.PeerID
	Name     string
	Underlay netip.AddrPort
	Anywhere bool
}

type limitOrder struct {
	Peer cm.PeerID
	Data int
}

type probeOrder struct {
	Peer   cm.PeerID
	At     netip.AddrPort
	Tenant uint32
	Probe  pathmtu.Probe
}

type setOrder struct {
	ID pfvf.ID
	Is config.Function
}

type vfsOrder struct {
	PF pfvf.ID
	N  int
}

type linkOrder struct {
	PF pfvf.ID
	Is pfvf.Link
}

// ordered writes an order down.
func (s *Shard) ordered(o order) { s.funcs.ordered(o) }

func (fs *functionSet) ordered(o order) {
	if fs.tape.Event(tape.Order) {
		fs.tape.PutValue(o)
	}
}

// decided returns a decision without its keys.
func decided(d *conn.Decision) *decideOrder {
	o := &decideOrder{Output: d.Output, Epoch: d.Epoch, Underlay: d.Underlay}
	if p := o.Output.Params; p != nil {
		own := *p
		own.TxKey = make([]byte, len(p.TxKey))
		o.Output.Params = &own
	}
	o.Output.SA = security.WithoutKey(o.Output.SA)
	if r, ok := d.Keys.(*security.Receive); ok && r != nil {
		u := r.Use()
		o.Receives = &u
	}
	return o
}

// decision is the reverse of decided.
func (o *decideOrder) decision() *conn.Decision {
	d := &conn.Decision{Output: o.Output, Epoch: o.Epoch, Underlay: o.Underlay}
	if o.Receives != nil {
		d.Keys = security.PlayedReceive(*o.Receives)
	}
	return d
}

// tapedError is an error on the tape: its text, and what code asks of it.
type tapedError struct {
	Text    string
	Refused *functions.Refusal
	Is      int // number of the known error that it wraps, from 1
}

// known lists the errors by which a driver's status is chosen.
var known = []error{
	cm.ErrNoRoute, cm.ErrPeerDown, cm.ErrNotLocal, cm.ErrLimit, conn.ErrNoCID, cm.ErrNotFound, cm.ErrState, cm.ErrInUse, cm.ErrInvalid,
}

func tapeError(err error) *tapedError {
	if err == nil {
		return nil
	}
	e := &tapedError{Text: err.Error()}
	errors.As(err, &e.Refused)
	for i, k := range known {
		if e.Is == 0 && errors.Is(err, k) {
			e.Is = i + 1
		}
	}
	return e
}

// err returns the error again.
func (e *tapedError) err() error {
	switch {
	case e == nil:
		return nil
	case e.Refused != nil:
		return e.Refused
	}
	return e
}

func (e *tapedError) Error() string { return e.Text }

// Unwrap returns the known error.
func (e *tapedError) Unwrap() error {
	if e.Is < 1 || e.Is > len(known) {
		return nil
	}
	return known[e.Is-1]
}
