package falcon_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestInitiatorStates walks a push and a pull of an ordered connection through the states of Falcon
// §8.4.1. The second of two completes late, since completions come in order; so its states can be
// seen. PushCplTx and PullDataUlpTx are those of a transaction whose completion is delivered: then
// it is over.
func TestInitiatorStates(t *testing.T) {
	is := func(state func() string, want string) {
		t.Helper()
		if got := state(); got != want {
			t.Errorf("in %s, want %s", got, want)
		}
	}
	t.Run("push", func(t *testing.T) {
		s := newSingle(t, testProfile())
		cfg := s.c.Config()
		s.push(2)
		first, second := s.c.Transaction(cfg.TxRSN), s.c.Transaction(cfg.TxRSN+1)
		is(second, "PushReqUlpRx")
		s.transmit()
		is(second, "PushDataTx")
		s.ack(wire.Ack{Extended: true, DataAck: wire.Bitmap128{Lo: 2}, DataRx: wire.Bitmap128{Lo: 2}})
		is(first, "PushDataTx")
		is(second, "PushDataAckd")
		s.ack(wire.Ack{DataBase: cfg.TxDataPSN + 2})
		is(first, "over")
		is(second, "over")
		if n := s.count(falcon.EvPushDone); n != 2 {
			t.Errorf("%d completions", n)
		}
	})
	t.Run("pull", func(t *testing.T) {
		s := newSingle(t, testProfile())
		cfg := s.c.Config()
		s.pull(2)
		first, second := s.c.Transaction(cfg.TxRSN), s.c.Transaction(cfg.TxRSN+1)
		is(second, "PullReqUlpRx")
		s.transmit()
		is(second, "PullReqTx")
		s.ack(wire.Ack{ReqBase: cfg.TxReqPSN + 2})
		is(second, "PullReqAckd")
		s.pullData(cfg.RxDataPSN, cfg.TxRSN+1, 64)
		is(second, "PullDataRx")
		is(first, "PullReqAckd")
		s.pullData(cfg.RxDataPSN+1, cfg.TxRSN, 64)
		is(first, "over")
		is(second, "over")
	})
}

// TestTargetStates walks pushes and pulls through the states of Falcon §8.5.1, and through those
// that a refusing upper layer adds. RespondPull acknowledges a pull and supplies its data in one
// call, so PullReqUlpAckd takes no time.
func TestTargetStates(t *testing.T) {
	setup := func(t *testing.T) (*single, func(want ...string)) {
		s := newSingle(t, testProfile())
		s.ulp.OnPush, s.ulp.OnPull = noAnswer, noAnswer
		return s, func(want ...string) {
			t.Helper()
			for i, w := range want {
				if got := s.c.TargetState(7 + uint32(i)); got != w {
					t.Errorf("request %d is in %q, want %q", i, got, w)
				}
			}
		}
	}
	t.Run("push", func(t *testing.T) {
		s, are := setup(t)
		s.pushData(201, 8, false)
		are("", "PushDataRx")
		s.pushData(200, 7, false)
		are("PushReqUlpTx", "PushReqUlpTx")
		s.c.AckPush(s.now, 8)
		are("PushReqUlpTx", "answered")
		s.c.NackPush(s.now, 7, wire.NackRNR, 1, 0)
		are("not ready", "answered")
		s.pushData(200, 7, false)
		are("PushReqUlpTx", "answered")
		s.c.AckPush(s.now, 7)
		are("", "")
	})
	t.Run("push in error", func(t *testing.T) {
		s, are := setup(t)
		s.pushData(200, 7, false)
		s.c.NackPush(s.now, 7, wire.NackCIE, 0, 5)
		are("refused")
		s.resync(200, 7, wire.TypePushData)
		are("")
	})
	t.Run("pull", func(t *testing.T) {
		s, are := setup(t)
		s.pullRequest(501, 8, false)
		are("", "PullReqRx")
		s.pullRequest(500, 7, false)
		are("PullReqUlpTx", "PullReqUlpTx")
		s.c.RNRPull(s.now, 7, 1)
		are("not ready", "PullReqUlpTx")
		s.advance(wire.RNRTimeout(1) + ms)
		are("PullReqUlpTx", "PullReqUlpTx")
		if err := s.c.RespondPull(s.now, 7, 1, 64); err != nil {
			t.Fatal(err)
		}
		are("", "PullReqUlpTx")
		response := s.c.Response(7)
		if got := response(); got != "PullDataUlpRx" {
			t.Errorf("the response is in %s", got)
		}
		s.transmit()
		if got := response(); got != "PullDataTx" {
			t.Errorf("the response is in %s", got)
		}
		s.ack(wire.Ack{DataBase: 301}) // PullDataAckd, which its completion ends at once
		if got, n := response(), s.count(falcon.EvResponseDone); got != "over" || n != 1 {
			t.Errorf("the response is in %s, %d completions", got, n)
		}
	})
}
