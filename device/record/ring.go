package record

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/internal/tape"
)

// Ring keeps the last of what the shards of a NIC recorded, in memory that can outlive the process: of
// a worker that has ended somehow, its supervisor saves it. After each Step a shard copies what was in
// it to its part of the memory; the oldest Steps make room. As long as none had to, what is saved is
// the whole recording.
//
//	ringHead │ header in JSON │ part of shard 0 │ part of shard 1 │ …
//	part: tail, head (8 bytes each) │ what the tape writes now, up to zeros │ bytes, in which entries of 4 bytes
//	      of length and their content go round; tail and head count all bytes that ever were there
//
// A process may end at any instruction. So head moves when an entry is there, and tail before its
// bytes are written over. What it did in the Step in which it ended, perhaps in a loop without an end, is in the tape's
// buffer, which is in this memory, too. Whatever is left of the Step before is cleared.
type Ring struct {
	file   *os.File
	mem    []byte
	parts  []ringPart
	tapes  []*tape.Tape
	header Header
}

// ringPart is the part of one shard.
type ringPart struct {
	mu         sync.Mutex // held while an entry is written, or some are copied
	mem        []byte
	open       []byte // the tape's buffer, in mem
	tail, head uint64
}

const (
	ringMagic  = "vnicring"
	ringHead   = 24 // the magic, the length of the header, and the size of a part (8 bytes each)
	partHead   = 16
	entryHead  = 4
	ringBuffer = 1 << 20 // room for what is in a Step; of one with more, the beginning is there
)

// NewRing begins a recording in memory, of c.Limit bytes.
func NewRing(c Config, h Header) (*Ring, error) {
	h.Config, h.Payload = c.Text, c.Keep.String()
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	size := partHead + ringBuffer + c.Limit/int64(h.Shards)&^7
	from := int64(ringHead+len(text)+7) &^ 7
	fd, err := unix.MemfdCreate("vnic-recorder", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	r := &Ring{file: os.NewFile(uintptr(fd), "recorder"), header: h}
	if err = r.file.Truncate(from + size*int64(h.Shards)); err == nil {
		// A page that the shard's thread were the first to touch would cost it more than what it writes there.
		r.mem, err = unix.Mmap(fd, 0, int(from+size*int64(h.Shards)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nic.recorder.size: %w", err), r.file.Close())
	}
	b := append(r.mem[:0], ringMagic...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(text)))
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	copy(r.mem[len(b):], text)
	r.parts = make([]ringPart, h.Shards)
	for i := range r.parts {
		p := &r.parts[i]
		p.mem = r.mem[from+size*int64(i):][:size:size]
		p.open = p.mem[partHead:][:ringBuffer:ringBuffer]
		r.tapes = append(r.tapes, tape.Record(1, c.Keep, p.take))
	}
	return r, nil
}

// Tape returns the tape of a shard, which belongs to its thread.
func (r *Ring) Tape(shard int) *tape.Tape { return r.tapes[shard] }

// File returns the memory, for a process that outlives this one.
func (r *Ring) File() *os.File { return r.file }

// Close frees the memory. The threads of the shards have ended.
func (r *Ring) Close() error { return errors.Join(unix.Munmap(r.mem), r.file.Close()) }

// take copies a tape's buffer to the memory and returns it empty. It never waits: while somebody copies entries, the
// tape keeps what it has until the next Step.
func (p *ringPart) take(b []byte) []byte {
	if b == nil {
		return p.open[:0]
	}
	if !p.mu.TryLock() {
		return b
	}
	defer p.mu.Unlock()
	defer clear(p.open[:min(len(b), ringBuffer)])
	size, need := uint64(len(p.data())), uint64(entryHead+len(b))
	for p.head-p.tail+need > size {
		if p.tail == p.head {
			return p.open[:0] // it is larger than all the memory: what follows says that it is missing
		}
		var n [entryHead]byte
		p.read(p.tail, n[:])
		p.tail += entryHead + uint64(binary.LittleEndian.Uint32(n[:]))
	}
	binary.LittleEndian.PutUint64(p.mem, p.tail)
	var n [entryHead]byte
	binary.LittleEndian.PutUint32(n[:], uint32(len(b)))
	p.write(p.head, n[:])
	p.write(p.head+entryHead, b)
	p.head += need
	p.open[0] = 0 // or it would be there twice
	binary.LittleEndian.PutUint64(p.mem[8:], p.head)
	return p.open[:0]
}

// data is where the entries go round.
func (p *ringPart) data() []byte { return p.mem[partHead+ringBuffer:] }

func (p *ringPart) write(at uint64, b []byte) {
	data := p.data()
	n := copy(data[at%uint64(len(data)):], b)
	copy(data, b[n:])
}

func (p *ringPart) read(at uint64, b []byte) {
	data := p.data()
	n := copy(b, data[at%uint64(len(data)):])
	copy(b[n:], data)
}

// WriteTo writes the recording as it is now, as a file has it.
func (r *Ring) WriteTo(w io.Writer) (size int64, err error) {
	part := int64(len(r.parts[0].mem))
	return writeRing(w, &r.header, r.file, int64(len(r.mem)), part, func(shard int) sync.Locker { return &r.parts[shard].mu }, false)
}

// Save saves the recording as it is now in a new file.
func (r *Ring) Save(path string) (size int64, err error) {
	return save(path, r.WriteTo)
}

// Rescue saves the recording of a process that has ended, whose recorder had so many bytes. Nothing in
// its memory is trusted.
func Rescue(memory *os.File, limit int64, path string) (size int64, err error) {
	st, err := memory.Stat()
	if err != nil {
		return 0, err
	}
	if !st.Mode().IsRegular() || st.Size() > ringHead+maxHeader+8+limit+maxShards*(partHead+ringBuffer) {
		return 0, errNoRing
	}
	h, part, err := ringHeader(memory, st.Size())
	if err != nil {
		return 0, err
	}
	return save(path, func(w io.Writer) (int64, error) {
		return writeRing(w, h, memory, st.Size(), part, noLock, true)
	})
}

// noLock locks nothing: nobody writes any more.
func noLock(int) sync.Locker { return &sync.Mutex{} }

var errNoRing = errors.New("the memory of the recorder is damaged")

// ringHeader reads the header of a recording in memory of so many bytes, and the size of a part.
func ringHeader(memory io.ReaderAt, all int64) (h *Header, part int64, err error) {
	var head [ringHead]byte
	if _, err := memory.ReadAt(head[:], 0); err != nil || string(head[:8]) != ringMagic {
		return nil, 0, errNoRing
	}
	text := make([]byte, min(binary.LittleEndian.Uint64(head[8:]), maxHeader))
	if _, err := memory.ReadAt(text, ringHead); err != nil || json.Unmarshal(text, &h) != nil || h == nil {
		return nil, 0, errNoRing
	}
	part = int64(binary.LittleEndian.Uint64(head[16:]))
	if h.Shards < 1 || h.Shards > maxShards || part <= partHead+ringBuffer || part > all/int64(h.Shards) {
		return nil, 0, errNoRing
	}
	return h, part, nil
}

// writeRing writes a file of a recording in memory of so many bytes in all. lock returns what keeps a part
// from being written meanwhile. If the process has ended, what it was doing is written, too.
func writeRing(w io.Writer, h *Header, memory io.ReaderAt, all, part int64, lock func(shard int) sync.Locker, ended bool) (size int64, err error) {
	from := all - part*int64(h.Shards)
	if size, err = h.write(w); err != nil {
		return 0, err
	}
	for shard := range h.Shards {
		at := from + part*int64(shard)
		e := entries{memory: memory, at: at, size: uint64(part - partHead - ringBuffer), lock: lock(shard)}
		for {
			b, err := e.next()
			if err != nil {
				return size, err
			}
			if len(b) == 0 {
				break
			}
			n, err := (&chunk{shard, b}).write(w)
			if size += n; err != nil {
				return size, err
			}
		}
		if !ended {
			continue
		}
		n, err := writeOpen(w, shard, memory, at+partHead)
		if size += n; err != nil {
			return size, err
		}
	}
	return size, nil
}

// writeOpen writes what the tape of a shard had written of a Step that did not come to its end.
func writeOpen(w io.Writer, shard int, memory io.ReaderAt, at int64) (size int64, err error) {
	b := make([]byte, 1+ringBuffer)
	b[0] = byte(tape.Torn)
	if _, err = memory.ReadAt(b[1:], at); err != nil || b[1] == 0 {
		return 0, err
	}
	return (&chunk{shard, bytes.TrimRight(b, "\x00")}).write(w)
}

// entries reads the entries of a part, from the oldest to what was the newest when it began.
type entries struct {
	memory io.ReaderAt
	at     int64  // of the part
	size   uint64 // of its bytes
	lock   sync.Locker
	pos    uint64 // of the next entry
	end    uint64 // where it ends
	begun  bool
	b      []byte
}

// next returns the next entries, some at a time; none: there are no more.
func (e *entries) next() ([]byte, error) {
	e.lock.Lock()
	defer e.lock.Unlock()
	var head [partHead]byte
	if _, err := e.memory.ReadAt(head[:], e.at); err != nil {
		return nil, err
	}
	tail, end := binary.LittleEndian.Uint64(head[:]), binary.LittleEndian.Uint64(head[8:])
	if end < tail || end-tail > e.size {
		return nil, errNoRing
	}
	if !e.begun {
		e.begun, e.end = true, end
	}
	e.pos = max(e.pos, tail) // some may have made room since
	e.b = e.b[:0]
	for e.pos < e.end && len(e.b) < bufferSize/4 {
		var n [entryHead]byte
		if err := e.read(e.pos, n[:]); err != nil {
			return nil, err
		}
		size := uint64(binary.LittleEndian.Uint32(n[:]))
		if size > end-e.pos-entryHead {
			return nil, errNoRing
		}
		was := len(e.b)
		e.b = append(e.b, make([]byte, size)...)
		if err := e.read(e.pos+entryHead, e.b[was:]); err != nil {
			return nil, err
		}
		e.pos += entryHead + size
	}
	return e.b, nil
}

func (e *entries) read(at uint64, b []byte) error {
	off := at % e.size
	n := min(uint64(len(b)), e.size-off)
	if _, err := e.memory.ReadAt(b[:n], e.at+partHead+ringBuffer+int64(off)); err != nil {
		return err
	}
	_, err := e.memory.ReadAt(b[n:], e.at+partHead+ringBuffer)
	return err
}

// MaxSaved is how many recordings of a NIC are saved in a folder, beside those that operators ask for.
const MaxSaved = 8

// SaveIn saves a recording of the NIC with this cm.name in a folder, where the file's name says when and
// why. It fails when there are MaxSaved of the NIC: what a guest does must not fill a disk.
func SaveIn(folder, name, why string, to func(path string) (int64, error)) (path string, err error) {
	list, err := filepath.Glob(filepath.Join(folder, "vnic_"+name+"_*.rec")) // no name has a character of patterns, or _
	if err == nil && len(list) >= MaxSaved {
		err = fmt.Errorf("%s has %d recordings of this NIC already: move them, and the next is saved", folder, len(list))
	}
	if err != nil {
		return "", err
	}
	path = filepath.Join(folder, fmt.Sprintf("vnic_%s_%s_%s.rec", name, time.Now().Format("20060102-150405"), why))
	part := path + ".part" // the file has its name when it is whole
	if _, err = to(part); err == nil {
		err = os.Rename(part, path)
	}
	return path, err
}
