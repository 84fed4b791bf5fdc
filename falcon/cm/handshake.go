package cm

import (
	"encoding/binary"
	"fmt"
	"io"
)

// handshake executes the steps of connections: it makes offers, answers and gives up. transitions
// defines which step follows which event.
type handshake struct {
	cfg   *Config
	res   Resources
	rand  io.Reader
	out   *outbox
	peers *peers
	keys  *rekeying
	conns *table
}

func random(from io.Reader, b []byte) error {
	if _, err := io.ReadFull(from, b); err != nil {
		return fmt.Errorf("cm: reading random bytes: %w", err)
	}
	return nil
}

// takeOffer stores the values that the peer decides.
func (h *handshake) takeOffer(c *conn, o *Offer) {
	if c.peer != h.peers.self {
		h.keys.learn(c.peer, c.txUse(), o.SA)
	}
	c.par.RemoteCID, c.par.PeerIRD = o.CID, o.IRD
	c.par.RxDataPSN, c.par.RxReqPSN, c.par.RxRSN = o.DataPSN, o.ReqPSN, o.RSN
	c.par.RemoteTime = o.Time
}

// offer allocates a CID and collects the values that this side decides. On error nothing is kept.
func (h *handshake) offer(now Time, c *conn) (Offer, error) {
	var r [12]byte
	if err := random(h.rand, r[:]); err != nil {
		return Offer{}, err
	}
	sa, err := h.rxSA(c)
	if err != nil {
		return Offer{}, fmt.Errorf("cm: receive SA for host %d, tenant %d: %w", c.peer.Host, c.par.Tenant, err)
	}
	cid, err := h.res.AllocCID(c.par.Function)
	for err != nil && h.endOldest(now, c.par.Function) {
		cid, err = h.res.AllocCID(c.par.Function)
	}
	if err != nil {
		return Offer{}, fmt.Errorf("cm: CID for function %#06x: %w", c.par.Function, err)
	}
	c.hasCID = true
	c.par.LocalCID = cid
	if c.peer != h.peers.self {
		c.par.RxSPI = sa.SPI
	}
	c.par.TxDataPSN = binary.BigEndian.Uint32(r[0:])
	c.par.TxReqPSN = binary.BigEndian.Uint32(r[4:])
	c.par.TxRSN = binary.BigEndian.Uint32(r[8:])
	return Offer{
		Shard: c.par.PeerShard, CID: cid, DataPSN: c.par.TxDataPSN, ReqPSN: c.par.TxReqPSN, RSN: c.par.TxRSN,
		MTU: uint16(c.par.MTU), Ordered: c.par.Ordered, IRD: c.par.IRD, SA: sa, Time: pspTime(now),
		CompleteInError: c.par.CompleteInError,
	}, nil
}

// unsealed is the SA in offers of local connections, which have no keys.
var unsealed = SA{SPI: 1, Key: make([]byte, keyLen(0))}

// rxSA returns the SA with which the other end of c must seal.
func (h *handshake) rxSA(c *conn) (SA, error) {
	if c.peer == h.peers.self {
		return unsealed, nil
	}
	sa, err := h.res.RxSA(Use{Peer: c.peer.Host, Shard: c.par.PeerShard, Tenant: c.par.Tenant})
	if err == nil {
		err = sa.check()
	}
	return sa, err
}
