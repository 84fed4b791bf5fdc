package local

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
)

// TestLimits: requests and responses of exactly the MTU are issued.
func TestLimits(t *testing.T) {
	const mtu = 1080
	e := New(nil)
	l, err := e.Open(falcon.ConnConfig{LocalCID: 1, RemoteCID: 1, MTU: mtu})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		issue func() error
		want  error
	}{
		"push":              {func() error { return l.Push(0, 0, mtu) }, nil},
		"long push":         {func() error { return l.Push(0, 0, mtu+1) }, falcon.ErrTooLong},
		"negative push":     {func() error { return l.Push(0, 0, -1) }, falcon.ErrTooLong},
		"empty push":        {func() error { return l.Push(0, 0, 0) }, nil},
		"pull":              {func() error { return l.Pull(0, 0, mtu, mtu) }, nil},
		"long request":      {func() error { return l.Pull(0, 0, mtu+1, mtu) }, falcon.ErrTooLong},
		"negative request":  {func() error { return l.Pull(0, 0, -1, mtu) }, falcon.ErrTooLong},
		"long response":     {func() error { return l.Pull(0, 0, mtu, mtu+1) }, falcon.ErrTooLong},
		"negative response": {func() error { return l.Pull(0, 0, mtu, -1) }, falcon.ErrTooLong},
		"empty pull":        {func() error { return l.Pull(0, 0, 0, 0) }, nil},
	} {
		if err := c.issue(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	l.answer = answer{rsn: 7, most: 100}
	if err := l.RespondPull(0, 7, 0, 101); !errors.Is(err, falcon.ErrTooLong) {
		t.Errorf("response longer than asked for: %v", err)
	}
	if err := l.RespondPull(0, 7, 0, 100); err != nil || l.answer.kind != answerResponse {
		t.Errorf("response as long as asked for: %v", err)
	}
	l.answer = answer{rsn: 7}
	l.NackPush(0, 8, falconwire.NackNRE, 0, 0)
	l.AckPush(0, 8)
	if l.answer.kind != unanswered {
		t.Error("an answer to another request is taken")
	}
}
