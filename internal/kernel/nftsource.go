package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The chain own-source passes a packet whose source is the one that its connection's first source must leave with, for
// each family:
//
//	ct original ip saddr . ip saddr @sources4 goto pass
//	ct original ip saddr @masqueraded4 fib saddr . oif type local goto pass
//
// The library cannot express "ct original ip saddr" (NFT_CT_SRC_IP), and what it offers, NFT_CT_SRC, makes nft abort
// when it lists such a rule. So these rules, which never change, are written here by hand, in the transaction of all others.

// ownSourceRules are the messages that write the rules of chain own-source anew.
func ownSourceRules() ([]netlink.Message, error) {
	messages := []netlink.Message{
		nftMessage(unix.NFT_MSG_DELRULE, 0, ruleAttributes(nil)), // without a handle: all rules of the chain
	}
	for _, f := range families {
		pair := join(f.load(f.src, reg32+f.len/4), part{&expr.Lookup{SourceRegister: reg32, SetName: setSources + f.suffix}}, goTo(chainPass))
		masqueraded := join(part{&expr.Lookup{SourceRegister: reg32, SetName: setMasquerade + f.suffix}}, sourceOfDevice(), goTo(chainPass))
		for _, rest := range []part{pair, masqueraded} {
			expressions, err := ownSource(f, rest)
			if err != nil {
				return nil, err
			}
			messages = append(messages, nftMessage(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, ruleAttributes(expressions)))
		}
	}
	return messages, nil
}

// ownSource encodes the expressions of a rule of one family: the connection's first source in register reg32, then rest.
func ownSource(f family, rest part) ([]byte, error) {
	key := uint32(unix.NFT_CT_SRC_IP)
	if f == ipv6 {
		key = unix.NFT_CT_SRC_IP6
	}
	originalSource := encode(
		netlink.Attribute{Type: unix.NFTA_EXPR_NAME, Data: []byte("ct\x00")},
		netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_EXPR_DATA, Data: encode(
			netlink.Attribute{Type: unix.NFTA_CT_KEY, Data: binary.BigEndian.AppendUint32(nil, key)},
			netlink.Attribute{Type: unix.NFTA_CT_DREG, Data: binary.BigEndian.AppendUint32(nil, reg32)},
			netlink.Attribute{Type: unix.NFTA_CT_DIRECTION, Data: []byte{0}},
		)},
	)
	encoded := [][]byte{}
	marshal := func(p part) error {
		for _, e := range p {
			b, err := expr.Marshal(unix.NFPROTO_INET, e)
			if err != nil {
				return fmt.Errorf("encode %T: %w", e, err)
			}
			encoded = append(encoded, b)
		}
		return nil
	}
	if err := marshal(f.is()); err != nil {
		return nil, err
	}
	encoded = append(encoded, originalSource)
	if err := marshal(rest); err != nil {
		return nil, err
	}
	list := make([]netlink.Attribute, len(encoded))
	for i, b := range encoded {
		list[i] = netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: b}
	}
	return encode(list...), nil
}

func ruleAttributes(expressions []byte) []byte {
	attributes := []netlink.Attribute{
		{Type: unix.NFTA_RULE_TABLE, Data: []byte(tableName + "\x00")},
		{Type: unix.NFTA_RULE_CHAIN, Data: []byte(chainOwnSource + "\x00")},
	}
	if expressions != nil {
		attributes = append(attributes, netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_RULE_EXPRESSIONS, Data: expressions})
	}
	return encode(attributes...)
}

// encode cannot fail but on attributes of more than 64 KiB, which these are not.
func encode(attributes ...netlink.Attribute) []byte {
	b, _ := netlink.MarshalAttributes(attributes)
	return b
}

// nftMessage is one message of a batch: struct nfgenmsg, then attributes.
func nftMessage(kind uint16, flags netlink.HeaderFlags, attributes []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, attributes...),
	}
}

// batchEdge begins or ends a transaction of the nftables subsystem.
func batchEdge(kind uint16) netlink.Message {
	data := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request},
		Data:   binary.BigEndian.AppendUint16(data, unix.NFNL_SUBSYS_NFTABLES),
	}
}
