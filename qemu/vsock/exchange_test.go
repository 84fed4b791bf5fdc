package vsock

import "testing"

// TestCountersOfAnExchange: what a guest sends is counted exactly, by kind.
func TestCountersOfAnExchange(t *testing.T) {
	tr, w := device(t, 3776, 16)
	l, err := tr.Listen(7)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	inject(tr, fromGuest(OpRequest, 1000, 7), nil)
	c, err := l.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	inject(tr, fromGuest(OpReadWrite, 1000, 7), []byte("seven!!"))
	if _, err := c.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	inject(tr, fromGuest(OpRequest, 1001, 8), nil)              // nobody listens
	inject(tr, fromGuest(OpReadWrite, 1002, 7), []byte("lost")) // no such flow
	want := Stats{PacketsIn: 4, PacketsOut: 4, BytesIn: 11, BytesOut: 6, UnknownFlow: 1, Refused: 1}
	if got := tr.Stats(); got != want || len(w.packets) != 4 {
		t.Errorf("%+v with %d packets sent\nwant %+v", got, len(w.packets), want)
	}
}
