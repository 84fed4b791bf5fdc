package local

import (
	"github.com/falcon-vnic/vnic/falcon"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
)

// answer is the target's answer to the request that is being delivered.
type answer struct {
	kind   answerKind
	rsn    uint32
	code   falconwire.NackCode
	rnr    uint8
	ulp    uint8
	tag    uint64
	until  falcon.Time // when to deliver it again
	length int         // of the response
	most   int         // maximum of length
}

type answerKind uint8

const (
	unanswered answerKind = iota
	answerAck
	answerNack
	answerDefer
	answerResponse
)

// refusal returns the completion code of a refused transaction (Falcon §11).
func (a *answer) refusal() falcon.Completion {
	if a.kind == answerNack {
		switch a.code {
		case falconwire.NackCIE:
			return falcon.CmplTargetNackCIE
		case falconwire.NackNRE:
			return falcon.CmplTargetNackNRE
		case falconwire.NackCID:
			return falcon.CmplTargetNackCID
		}
	}
	return falcon.CmplRemoteErr
}
