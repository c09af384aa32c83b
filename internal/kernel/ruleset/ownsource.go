package ruleset

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
)

// The chain own-source-N passes a packet of a flow on path N if that is the pod's path and the packet's source is the
// one that belongs to the connection's original source; for each family:
//
//	ct original ip saddr . ip saddr @sources4-N meta mark set meta mark & OTHERS accept
//	ct original ip saddr map @egress4 N ct original ip saddr @masqueraded4 fib saddr . oif type local meta mark set … accept
//
// The library cannot express "ct original ip saddr" (NFT_CT_SRC_IP). It offers NFT_CT_SRC, but nft aborts when it lists
// a rule with that. So these rules are encoded here, within the transaction of all others.

// OwnSourceRules returns the messages that add the rules of a path's chain own-source. The chain must be empty.
func OwnSourceRules(m plan.Marks, id plan.PathID) (messages []netlink.Message, err error) {
	name := Named(chainOwnSource, id)
	for _, f := range Families {
		pair, err := encodeParts(f.is(), loadOriginalSource(f, reg32), f.load(f.Src, reg32+f.Len/4),
			part{&expr.Lookup{SourceRegister: reg32, SetName: Named(SetSources+f.Suffix, id)}}, pass(m))
		if err != nil {
			return nil, err
		}
		masqueraded, err := encodeParts(f.is(), loadOriginalSource(f, reg), isPath(SetEgress+f.Suffix, id),
			loadOriginalSource(f, reg), in(SetMasquerade+f.Suffix), sourceOfDevice(), pass(m))
		if err != nil {
			return nil, err
		}
		for _, expressions := range [][]byte{pair, masqueraded} {
			messages = append(messages, nl.NftMessage(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, nl.EncodeAttrs(
				netlink.Attribute{Type: unix.NFTA_RULE_TABLE, Data: []byte(TableName + "\x00")},
				netlink.Attribute{Type: unix.NFTA_RULE_CHAIN, Data: []byte(name + "\x00")},
				netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_RULE_EXPRESSIONS, Data: expressions},
			)))
		}
	}
	return messages, nil
}

// encoded is an expression in wire format.
type encoded []byte

// loadOriginalSource loads the connection's original source.
func loadOriginalSource(f Family, register uint32) encoded {
	key := uint32(unix.NFT_CT_SRC_IP)
	if f == IPv6 {
		key = unix.NFT_CT_SRC_IP6
	}
	return nl.EncodeAttrs(
		netlink.Attribute{Type: unix.NFTA_EXPR_NAME, Data: []byte("ct\x00")},
		netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_EXPR_DATA, Data: nl.EncodeAttrs(
			netlink.Attribute{Type: unix.NFTA_CT_KEY, Data: binary.BigEndian.AppendUint32(nil, key)},
			netlink.Attribute{Type: unix.NFTA_CT_DREG, Data: binary.BigEndian.AppendUint32(nil, register)},
			netlink.Attribute{Type: unix.NFTA_CT_DIRECTION, Data: []byte{0}},
		)},
	)
}

// encodeParts encodes a rule's expressions: each argument is a part or already encoded.
func encodeParts(parts ...any) ([]byte, error) {
	var list []netlink.Attribute
	add := func(b []byte) {
		list = append(list, netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: b})
	}
	for _, p := range parts {
		switch p := p.(type) {
		case encoded:
			add(p)
		case part:
			for _, e := range p {
				b, err := expr.Marshal(unix.NFPROTO_INET, e)
				if err != nil {
					return nil, fmt.Errorf("encode %T: %w", e, err)
				}
				add(b)
			}
		}
	}
	return nl.EncodeAttrs(list...), nil
}
