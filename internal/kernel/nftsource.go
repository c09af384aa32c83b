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
// when it lists such a rule. So these rules, which never change, are written here by hand. Until they stand the guard
// finds nothing that passes, and drops.

// addOwnSource writes the rules of chain own-source if they are not there.
func addOwnSource() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open nftables socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	present, err := conn.Execute(nftMessage(unix.NFT_MSG_GETRULE, netlink.Dump, ruleAttributes(nil)))
	if err != nil {
		return fmt.Errorf("list rules of chain %s: %w", chainOwnSource, err)
	}
	if len(present) == 2*len(families) {
		return nil
	}
	messages := []netlink.Message{
		batchEdge(unix.NFNL_MSG_BATCH_BEGIN),
		nftMessage(unix.NFT_MSG_DELRULE, netlink.Acknowledge, ruleAttributes(nil)), // without a handle: all rules of the chain
	}
	for _, f := range families {
		pair := join(f.load(f.src, reg32+f.len/4), part{&expr.Lookup{SourceRegister: reg32, SetName: setSources + f.suffix}}, goTo(chainPass))
		masqueraded := join(part{&expr.Lookup{SourceRegister: reg32, SetName: setMasquerade + f.suffix}}, sourceOfDevice(), goTo(chainPass))
		for _, rest := range []part{pair, masqueraded} {
			expressions, err := ownSource(f, rest)
			if err != nil {
				return err
			}
			messages = append(messages, nftMessage(unix.NFT_MSG_NEWRULE, netlink.Acknowledge|netlink.Create|netlink.Append, ruleAttributes(expressions)))
		}
	}
	messages = append(messages, batchEdge(unix.NFNL_MSG_BATCH_END))

	if _, err := conn.SendMessages(messages); err != nil {
		return fmt.Errorf("write chain %s: %w", chainOwnSource, err)
	}
	for range messages[1 : len(messages)-1] {
		if _, err := conn.Receive(); err != nil {
			return fmt.Errorf("write chain %s: %w", chainOwnSource, err)
		}
	}
	return nil
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
