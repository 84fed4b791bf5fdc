package cm

import "fmt"

// Config is the configuration of a Manager. Zero durations and limits mean the default.
type Config struct {
	Host  HostID
	Peers []Peer
	MTU   int // largest ULP part (headers and data) of one packet, bytes; default 4096

	ReqTimeout    Time // between two REQ; default 1 s
	ReqRetries    int  // number of repetitions of REQ; default 7
	RepTimeout    Time // between two REP; default 1 s
	RepRetries    int  // default 7
	DreqTimeout   Time // between two DREQ; default 500 ms
	DreqRetries   int  // default 3
	AcceptTimeout Time // for the listener to accept or reject; default 30 s
	RekeyTimeout  Time // between two REKEY or REKEYREQ; default 1 s
	TimeWait      Time // a CID is not reused for this long; default 2 s

	MaxPerPeer     int // connections requested by one peer, in any state; default 8192
	MaxPerFunction int // connections of one function, in any state; default 2048
	MaxListeners   int // per function; default 256
	Backlog        int // requests to one function that it has not answered; a source may have no more than are left free; default 512
}

func or[T int | int64](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// defaults returns the configuration with every zero replaced.
func (c Config) defaults() Config {
	const ms = 1_000_000
	or(&c.MTU, 4096)
	or(&c.ReqTimeout, 1000*ms)
	or(&c.ReqRetries, 7)
	or(&c.RepTimeout, 1000*ms)
	or(&c.RepRetries, 7)
	or(&c.DreqTimeout, 500*ms)
	or(&c.DreqRetries, 3)
	or(&c.AcceptTimeout, 30_000*ms)
	or(&c.RekeyTimeout, 1000*ms)
	or(&c.TimeWait, 2000*ms)
	or(&c.MaxPerPeer, 8192)
	or(&c.MaxPerFunction, 2048)
	or(&c.MaxListeners, 256)
	or(&c.Backlog, 512)
	return c
}

func (c Config) check() error {
	if c.MTU < MinMTU || c.MTU > MaxMTU {
		return fmt.Errorf("cm: MTU %d: want %d to %d", c.MTU, MinMTU, MaxMTU)
	}
	for _, v := range []struct {
		name string
		v    int64
	}{
		{"ReqTimeout", c.ReqTimeout},
		{"ReqRetries", int64(c.ReqRetries)},
		{"RepTimeout", c.RepTimeout},
		{"RepRetries", int64(c.RepRetries)},
		{"DreqTimeout", c.DreqTimeout},
		{"DreqRetries", int64(c.DreqRetries)},
		{"AcceptTimeout", c.AcceptTimeout},
		{"RekeyTimeout", c.RekeyTimeout},
		{"TimeWait", c.TimeWait},
		{"MaxPerPeer", int64(c.MaxPerPeer)},
		{"MaxPerFunction", int64(c.MaxPerFunction)},
		{"MaxListeners", int64(c.MaxListeners)},
		{"Backlog", int64(c.Backlog)},
	} {
		if v.v < 0 {
			return fmt.Errorf("cm: %s %d: must not be negative", v.name, v.v)
		}
	}
	seen := map[HostID]bool{c.Host: true}
	for _, p := range c.Peers {
		if seen[p.Host] {
			return fmt.Errorf("cm: peer host %d is listed twice or is this host", p.Host)
		}
		seen[p.Host] = true
	}
	return nil
}
