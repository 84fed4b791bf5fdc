package security

import (
	"fmt"
	"maps"
	"slices"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/internal/tape"
)

// TxSA is the transmit SA of all connections to one peer in one tenant, or of a tunnel there.
// Sharing it ensures that no nonce is used twice, and that a new key serves all of them at once. It
// stays when the last connection ends, together with the IVs it has used.
type TxSA struct {
	use   Use
	sa    *psp.TxSA // replaced when the key is
	owner *TxSAs
	asked bool // another key was requested
}

// TxSAs holds the transmit SAs of one shard.
type TxSAs struct {
	PacketLimit uint64                      // packets per key, for keys given from now on
	Name        func(peer cm.PeerID) string // of a peer, for people

	encap   Encap
	request Requester
	log     *KeyLog
	current map[Use]*TxSA
	tape    *tape.Tape
}

// Requester requests keys from peers. The connection manager implements it, and repeats the request
// until a key comes.
type Requester interface {
	// RequestRekey requests a key that replaces the one with this SPI, or the first one (0).
	RequestRekey(u Use, spi uint32) error
}

// NewTxSAs returns an empty TxSAs.
func NewTxSAs(e Encap, r Requester) *TxSAs {
	return &TxSAs{PacketLimit: psp.PacketLimit, Name: nameless, encap: e, request: r, current: map[Use]*TxSA{}}
}

func nameless(peer cm.PeerID) string { return fmt.Sprint(uint32(peer)) }

// LogTo makes t write the keys that it gets from now on to l.
func (t *TxSAs) LogTo(l *KeyLog) { t.log = l }

// Len returns the number of transmit SAs.
func (t *TxSAs) Len() int { return len(t.current) }

// Has reports whether a peer has given a key for a use.
func (t *TxSAs) Has(u Use) bool { return t.current[u] != nil }

// Of returns the transmit SA of a use, or nil if the peer has given no key for it.
func (t *TxSAs) Of(u Use) *TxSA { return t.current[u] }

// Give makes all packets of a use be sealed with sa from now on.
func (t *TxSAs) Give(u Use, sa cm.SA) (*TxSA, error) {
	tx := t.current[u]
	if tx == nil {
		tx = &TxSA{use: u, owner: t}
	}
	if err := tx.renew(sa); err != nil {
		return nil, err
	}
	t.current[u] = tx
	return tx, nil
}

// ForgetPeer drops the keys of a peer that has restarted and lost them: its new process may issue
// the same SPIs with other keys.
func (t *TxSAs) ForgetPeer(peer cm.PeerID) {
	maps.DeleteFunc(t.current, func(u Use, _ *TxSA) bool { return u.Peer == peer })
}

// renew makes tx seal with sa.
func (x *TxSA) renew(sa cm.SA) error {
	old := x.sa
	if old != nil && old.SPI() == sa.SPI {
		return nil // received twice; a second TxSA for it would start the IVs again
	}
	var n *psp.TxSA
	var err error
	if x.use.Class == cm.ClassGateway {
		n, err = psp.NewGatewayTxSA(sa.Version, sa.SPI, sa.Key, Cookie(x.use.Tenant), offsetPlain)
	} else {
		n, err = x.owner.encap.newTxSA(x.use, sa.Version, sa.SPI, sa.Key)
	}
	if err != nil {
		return err
	}
	n.SetPacketLimit(x.owner.PacketLimit)
	if old != nil {
		n.Follow(old)
	}
	x.sa, x.asked = n, false
	x.owner.log.sa("tx", x.owner.Name(x.use.Peer), x.use, &sa)
	return nil
}

// SPI returns the SPI of the key in use.
func (x *TxSA) SPI() uint32 { return x.sa.SPI() }

// SealPlain seals an IP packet into b and returns the sealed length. It does not change packet.
//
//	PSP, cookie | inner IP … | ICV
func (x *TxSA) SealPlain(now int64, b, packet []byte) (sealed int, err error) {
	sealed, err = x.sa.SealFrom(now, nextHeader(packet[0]>>4 == 6), b, packet)
	x.refresh()
	return sealed, err
}

// refresh requests another key from the peer long before the present one is used up.
func (x *TxSA) refresh() {
	if x.asked || !x.sa.RekeyDue() {
		return
	}
	x.asked = true
	_ = x.owner.request.RequestRekey(x.use, x.SPI())
}

// TxInfo describes a transmit SA.
type TxInfo struct {
	Use      Use
	SPI      uint32
	Packets  uint64
	RekeyDue bool
}

// List describes all transmit SAs in a fixed order.
func (t *TxSAs) List() (list []TxInfo) {
	for _, u := range slices.SortedFunc(maps.Keys(t.current), Use.Compare) {
		sa := t.current[u].sa
		list = append(list, TxInfo{Use: u, SPI: sa.SPI(), Packets: sa.Packets(), RekeyDue: sa.RekeyDue()})
	}
	return list
}
