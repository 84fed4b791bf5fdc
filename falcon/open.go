package falcon

import (
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// Open adds a connection. It fails if the CID is in use, a value is out of range or Config.MaxConns
// connections are open.
func (e *Engine) Open(now Time, cfg ConnConfig) (*Conn, error) {
	switch {
	case cfg.LocalCID > wire.MaxCID:
		return nil, configError("LocalCID", cfg.LocalCID, "use 24 bits")
	case cfg.RemoteCID > wire.MaxCID:
		return nil, configError("RemoteCID", cfg.RemoteCID, "use 24 bits")
	case cfg.LocalFunction > wire.MaxFunction:
		return nil, configError("LocalFunction", cfg.LocalFunction, "use 24 bits")
	case cfg.RemoteFunction > wire.MaxFunction:
		return nil, configError("RemoteFunction", cfg.RemoteFunction, "use 24 bits")
	case !cfg.Protocol.Valid():
		return nil, configError("Protocol", cfg.Protocol, "use RDMA or NVMe")
	case cfg.MTU < 1 || cfg.MTU > e.cfg.CellBytes || cfg.MTU > 0xffff:
		return nil, configError("MTU", cfg.MTU, "use 1 to Config.CellBytes, at most 65535")
	case cfg.GiveUp < 0:
		return nil, configError("GiveUp", cfg.GiveUp, "use 0 for the profile's value")
	case e.conns.find(cfg.LocalCID) != nil:
		return nil, ErrCIDInUse
	case e.conns.n >= e.cfg.MaxConns:
		return nil, ErrTooManyConns
	}
	c := new(Conn)
	c.state = state{
		e: e, cfg: cfg, credits: cfg.Credits, random: cfg.LocalCID<<8 | 1,
		localCID: cfg.LocalCID, remoteCID: cfg.RemoteCID, localFunction: cfg.LocalFunction, remoteFunction: cfg.RemoteFunction,
		mtu: uint16(cfg.MTU), protocol: cfg.Protocol, ordered: cfg.Ordered,
	}
	if c.credits == nil {
		c.credits = e.cfg.Credits
	}
	if cfg.CreditLimit != (credit.Cost{}) {
		c.credits = credit.New(c.credits, cfg.CreditLimit)
	}
	if c.cfg.GiveUp == 0 {
		c.cfg.GiveUp = e.profile.GiveUp
	}
	e.profile.CC.Init(&c.cc)
	c.baseRSN, c.nextRSN = cfg.TxRSN, cfg.TxRSN
	c.targetBase, c.targetNext = cfg.RxRSN, cfg.RxRSN
	c.reqTx.base, c.reqTx.next = cfg.TxReqPSN, cfg.TxReqPSN
	c.dataTx.base, c.dataTx.next = cfg.TxDataPSN, cfg.TxDataPSN
	distance := uint8(min(max(e.profile.OOODistance, 1), wire.DataWindow))
	c.reqRx = rxWindow{base: cfg.RxReqPSN, size: wire.RequestWindow, distance: distance}
	c.dataRx = rxWindow{base: cfg.RxDataPSN, size: wire.DataWindow, distance: distance}
	c.lastEvent = longAgo
	c.drawSpacing()
	e.conns.add(c)
	e.schedule.join(c)
	return c, nil
}

// drawSpacing draws the distance to the next AR at random, uniform with the mean that the profile's
// percentage asks for.
func (c *state) drawSpacing() {
	if pct := uint32(c.e.profile.ARPercent); pct > 0 {
		c.arSpacing = 1 + c.nextRandom()%max(200/pct-1, 1)
	}
}

// nextRandom is a small xorshift generator. Only the spacing of AR bits depends on it.
func (c *state) nextRandom() uint32 {
	c.random ^= c.random << 13
	c.random ^= c.random >> 17
	c.random ^= c.random << 5
	return c.random
}
