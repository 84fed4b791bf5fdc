package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/examples/setup"
	"github.com/falcon-vnic/vnic/queues/abi"
)

const (
	service  = 5003
	slots    = 1024
	slotSize = 64
	textSize = 24     // of a key, of a value
	request  = 2 * 24 // key, value
	inbox    = slots * slotSize
	inboxes  = 8
)

var errFull = errors.New("the store is full")

func main() { setup.Main(server, client) }

// firstSlot is the slot where the search for a key begins.
func firstSlot(key string) int {
	h := fnv.New32a()
	h.Write([]byte(key))
	return int(h.Sum32() % slots)
}

func text(b []byte) string { return strings.TrimRight(string(b[:textSize]), "\x00") }

// put writes a slot while others read it.
func put(table []byte, key, value string) error {
	for i := range slots {
		slot := table[(firstSlot(key)+i)%slots*slotSize:][:slotSize]
		if k := text(slot[8:]); k != "" && k != key {
			continue
		}
		version := binary.LittleEndian.Uint64(slot)
		binary.LittleEndian.PutUint64(slot, version+1) // odd: being written
		clear(slot[8:56])
		copy(slot[8:], key)
		copy(slot[8+textSize:], value)
		binary.LittleEndian.PutUint64(slot[56:], version+2)
		binary.LittleEndian.PutUint64(slot, version+2)
		return nil
	}
	return errFull
}

// server keeps the table and does the puts.
func server(ctx context.Context, url string) error {
	s, err := setup.Open(ctx, url, inbox+inboxes*request)
	if err != nil {
		return err
	}
	defer s.Dev.Close()
	qp, err := s.QP(ctx)
	if err != nil {
		return err
	}
	receive := func(i uint64) error {
		return qp.PostRecv(&guestlib.RecvWR{ID: i, SGL: []guestlib.SGE{s.MR.SGE(inbox+int(i)*request, request)}})
	}
	for i := range uint64(inboxes) {
		if err := receive(i); err != nil {
			return err
		}
	}
	l, err := s.Dev.Listen(ctx, service)
	if err != nil {
		return err
	}
	if err := s.Accept(ctx, l, qp); err != nil {
		return err
	}
	for {
		wc, err := s.Next(ctx)
		if wc.Status == abi.WCWRFlushErr {
			return nil // the client hung up
		}
		if err != nil {
			return err
		}
		if wc.Opcode != abi.WCOpRecv {
			continue // our answer arrived
		}
		r := s.MR.Bytes()[inbox+int(wc.ID)*request:][:request]
		answer := "ok"
		if err := put(s.MR.Bytes()[:inbox], text(r), text(r[textSize:])); err != nil {
			answer = err.Error()
		}
		if err := receive(wc.ID); err != nil {
			return err
		}
		if err := qp.PostSend(&guestlib.SendWR{Opcode: guestlib.Send, Flags: guestlib.Signaled, Inline: []byte(answer)}); err != nil {
			return err
		}
	}
}

// store is the client's view.
type store struct {
	*setup.Side
	qp     *guestlib.QP
	remote setup.Remote
	reads  int
}

// Put asks the server.
func (k *store) Put(ctx context.Context, key, value string) error {
	if len(key) > textSize || len(value) > textSize || key == "" {
		return fmt.Errorf("key %q, value %q: 1 to %d bytes and 0 to %d", key, value, textSize, textSize)
	}
	if err := k.qp.PostRecv(&guestlib.RecvWR{SGL: []guestlib.SGE{k.MR.SGE(slotSize, slotSize)}}); err != nil {
		return err
	}
	r := make([]byte, request)
	copy(r, key)
	copy(r[textSize:], value)
	if err := k.qp.PostSend(&guestlib.SendWR{Opcode: guestlib.Send, Flags: guestlib.Signaled, Inline: r}); err != nil {
		return err
	}
	for range 2 { // the send and the answer
		wc, err := k.Next(ctx)
		if err != nil {
			return err
		}
		if answer := string(k.MR.Bytes()[slotSize:][:wc.ByteLen]); wc.Opcode == abi.WCOpRecv && answer != "ok" {
			return errors.New(answer)
		}
	}
	return nil
}

// Get reads the server's memory.
func (k *store) Get(ctx context.Context, key string) (value string, found bool, err error) {
	for i := 0; i < slots; {
		k.reads++
		err := k.Do(ctx, k.qp, &guestlib.SendWR{
			Opcode: guestlib.Read, SGL: []guestlib.SGE{k.MR.SGE(0, slotSize)},
			RemoteAddr: k.remote.Addr + uint64((firstSlot(key)+i)%slots*slotSize), RKey: k.remote.RKey,
		})
		if err != nil {
			return "", false, err
		}
		slot := k.MR.Bytes()[:slotSize]
		version := binary.LittleEndian.Uint64(slot)
		switch {
		case version%2 == 1 || version != binary.LittleEndian.Uint64(slot[56:]): // being written: again
		case text(slot[8:]) == "":
			return "", false, nil
		case text(slot[8:]) == key:
			return text(slot[8+textSize:]), true, nil
		default:
			i++
		}
	}
	return "", false, nil
}

func client(ctx context.Context, url string, peer guestlib.GID) error {
	s, err := setup.Open(ctx, url, 2*slotSize)
	if err != nil {
		return err
	}
	defer s.Dev.Close()
	qp, err := s.QP(ctx)
	if err != nil {
		return err
	}
	k := &store{Side: s, qp: qp}
	if k.remote, err = s.Connect(ctx, qp, peer, service); err != nil {
		return err
	}
	const n = 300
	for round := range 2 { // the second round overwrites
		for i := range n {
			if err := k.Put(ctx, fmt.Sprintf("key%d", i), fmt.Sprintf("value%d.%d", i, round)); err != nil {
				return err
			}
		}
	}
	for i := range n {
		v, found, err := k.Get(ctx, fmt.Sprintf("key%d", i))
		if want := fmt.Sprintf("value%d.1", i); err != nil || !found || v != want {
			return fmt.Errorf("key%d: got %q, %t, %w; want %q", i, v, found, err, want)
		}
	}
	if _, found, err := k.Get(ctx, "nobody"); found || err != nil {
		return fmt.Errorf("a key nobody put: %t, %w", found, err)
	}
	fmt.Printf("%d puts, %d gets with %d READs, none of which the server noticed\n", 2*n, n+1, k.reads)
	return nil
}
