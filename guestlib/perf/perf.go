package perf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/perf/perftest"
)

// Run is one side of a test. It returns the rows; those of a server are the client's.
func Run(ctx context.Context, cfg Config) (rows []Row, err error) {
	given := cfg
	if err := cfg.check(); err != nil {
		return nil, err
	}
	dev, err := guestlib.Open(ctx, cfg.URL, guestlib.Options{Driver: "vnic " + cfg.Test.String()})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	s, err := newSession(ctx, dev, &cfg)
	if err != nil {
		return nil, err
	}
	other, err := s.establish(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Test, err)
	}
	if other != nil {
		return s.runForeign(ctx, other, given)
	}
	if cfg.Header != nil {
		cfg.Header(s.header())
	}
	for _, size := range cfg.sizes() {
		r, err := s.row(ctx, size)
		if err != nil {
			return rows, fmt.Errorf("%s of %d bytes: %w", cfg.Test, size, err)
		}
		if cfg.Row != nil {
			cfg.Row(r)
		}
		rows = append(rows, *r)
	}
	_, err = s.ctl.exchange(ctx, nil) // so that neither closes while the other still waits
	return rows, err
}

// newSession makes the control connection's objects.
func newSession(ctx context.Context, dev *guestlib.Device, cfg *Config) (s *session, err error) {
	if cfg.Datagrams {
		cfg.Size = min(cfg.Size, dev.Info().MTU)
	}
	s = &session{Config: cfg, client: cfg.client(), dev: dev, epoch: time.Now()}
	if s.pd, err = dev.AllocPD(ctx); err != nil {
		return nil, err
	}
	s.ctl, err = newControl(ctx, dev, s.pd)
	return s, err
}

// establish connects the two sides. If the peer is a program of perftest, it returns the connection to
// that.
func (s *session) establish(ctx context.Context) (*perftest.Conn, error) {
	if s.client {
		return s.connect(ctx)
	}
	return s.listen(ctx)
}

func (s *session) header() Header {
	path, _ := s.dev.Path()
	mtu := s.MTU
	if mtu == 0 {
		mtu = s.dev.Info().MTU
	}
	return Header{
		Test: s.Test, Device: s.dev.Info().Function.String(), Path: path, Local: s.dev.GID(), Remote: s.Peer, QPs: s.QPs, TxDepth: s.TxDepth, CQMod: s.CQMod,
		MTU: mtu, Inline: s.Inline, Outs: s.Outs, Events: s.Events, Bidirectional: s.Bidirectional,
		Datagrams: s.Datagrams, Server: !s.client,
	}
}

// row measures one size.
func (s *session) row(ctx context.Context, size int) (*Row, error) {
	if _, err := s.ctl.exchange(ctx, nil); err != nil {
		return nil, err
	}
	r := &Row{Bytes: size}
	s.done, s.received = 0, 0
	var err error
	switch {
	case s.pingpong():
		err = s.pingPong(ctx, r)
	case s.Latency && s.client:
		err = s.oneByOne(ctx, r)
	case s.Latency:
	default:
		err = s.bandwidth(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	return s.compare(ctx, r)
}

// patience is how long a side waits for the other's row: the time of the test, and a while. It is 0 for a
// test of a number of messages: nobody knows how long that takes.
func (s *session) patience() time.Duration {
	if s.Duration == 0 {
		return 0
	}
	return s.Duration + stall
}

// compare merges both sides' rows into one. A side that still receives goes on receiving
// meanwhile.
func (s *session) compare(ctx context.Context, mine *Row) (*Row, error) {
	if err := s.ctl.send(mine); err != nil {
		return nil, err
	}
	if s.Bidirectional {
		if err := s.serve(ctx); err != nil {
			return nil, err
		}
	}
	other, err := s.ctl.finishExchange(ctx, s.patience())
	if err != nil {
		return nil, err
	}
	other.Bytes = mine.Bytes
	switch {
	case s.Bidirectional:
		mine.add(other)
	case !s.client:
		mine = other
	}
	if s.Datagrams && !s.Latency {
		err = s.countLost(ctx, mine)
	}
	return mine, err
}
