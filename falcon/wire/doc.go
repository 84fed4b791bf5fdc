// Package wire encodes and decodes the Falcon packets of the Falcon transport specification 0.9,
// §7. It holds no state.
//
//	      24 bytes                      8 bytes
//	PullRequest  | base header | request length, reserved | ULP headers
//	PullData     | base header | ULP headers and data
//	PushData     | base header | request length (4 bytes) | ULP headers and data
//	Resync       | base header | code, original type, vendor word
//	BACK         | CID, bases, t1, t2, congestion info, OWN                     32 bytes
//	EACK         | BACK | data ack, data rx and request bitmaps                 72 bytes
//	NACK         | CID, bases, t1, t2, congestion info | PSN, code, RNR, W, ULP 40 bytes
//
// Every format is one file with a struct, Append and a Parse function. Append never fails and adds
// exactly the bytes of the format; Parse rejects what is too short, of another version or of a
// reserved type with a Drop reason and never panics. Reserved bits are sent as zero and ignored on
// receipt. Payloads returned by Parse alias the input.
//
// All fields are big endian. Where the figures and the text of §7 disagree (width of RUE Info,
// acknowledgement types) docs/wire.md of this project lists the reading.
package wire
