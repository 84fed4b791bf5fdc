package etcd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/falcon-vnic/vnic/device/directory"
)

// TestAnErrorSaysWhatItMeans: whoever cannot reach etcd, or is refused by it, is told so in plain words,
// and an error that is clear stays as it is.
func TestAnErrorSaysWhatItMeans(t *testing.T) {
	for _, c := range []struct {
		err    error
		says   string
		denied bool
	}{
		{context.DeadlineExceeded, "etcd is not reached", false},
		{errors.New("rpc error: code = Unknown desc = context deadline exceeded"), "etcd is not reached", false}, // of a member without a majority
		{errors.New("dial tcp 10.0.0.1:2379: connect: connection refused"), "etcd is not reached", false},
		{rpctypes.ErrNoLeader, "has no leader", false},
		{rpctypes.ErrPermissionDenied, "does not let this certificate do that", true},
		{errors.New("the record is too long"), "", false},
	} {
		said := Explain(c.err)
		if !strings.Contains(said.Error(), c.says) || !strings.Contains(said.Error(), c.err.Error()) || errors.Is(said, directory.ErrDenied) != c.denied {
			t.Errorf("%v: %v", c.err, said)
		}
	}
}
