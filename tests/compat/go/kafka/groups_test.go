package kafka

import (
	"context"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Feature: classic groups
func TestMembersOfAGroupGoOnWhereItWas(t *testing.T) {
	goesOn(newWorld(t, 4))
}

// Feature: groups of KIP-848
func TestMembersOfAConsumerGroupGoOnWhereItWas(t *testing.T) {
	w := newWorld(t, 4)
	// The client takes part in such a group only if it is asked to.
	next := context.WithValue(context.Background(), "opt_in_kafka_next_gen_balancer_beta", true)
	goesOn(w, kgo.WithContext(next))
	groups, err := w.admin().ListGroupsByType(w.ctx, []string{"consumer"})
	w.must(err)
	same(w, []string{groups[w.topic].Group}, []string{w.topic})
}

func goesOn(w *world, options ...kgo.Opt) {
	w.Helper()
	w.produce(w.client(), w.values(numbers(0, 100)...)...)
	first := w.member(w.topic, options...)
	read := valuesOf(w.poll(first, 30))
	w.must(first.CommitUncommittedOffsets(w.ctx))
	second := w.member(w.topic, options...) // not before: it might have all partitions with records
	first.Close()
	read = append(read, valuesOf(w.poll(second, 70))...)
	w.must(second.CommitUncommittedOffsets(w.ctx))
	same(w, sorted(read), numbers(0, 100))
	lags, err := w.admin().Lag(w.ctx, w.topic)
	w.must(err)
	lag := lags[w.topic]
	same(w, []int64{lag.Lag.Total()}, []int64{0})
}

// Feature: static members
func TestAStaticMemberComesBackToItsPartitions(t *testing.T) {
	w := newWorld(t, 1)
	w.produce(w.client(), w.values("one", "two")...)
	static := kgo.InstanceID("one of them")
	first := w.member(w.topic, static)
	same(w, valuesOf(w.poll(first, 1)), []string{"one"})
	w.must(first.CommitUncommittedOffsets(w.ctx))
	first.Close()
	w.stillHas("one of them")
	same(w, valuesOf(w.poll(w.member(w.topic, static), 1)), []string{"two"})
	w.stillHas("one of them")
}

// stillHas says that the group was not rebalanced without this static member.
func (w *world) stillHas(name string) {
	w.Helper()
	groups, err := w.admin().DescribeGroups(w.ctx, w.topic)
	w.must(err)
	group := groups[w.topic]
	w.must(group.Err)
	found := []string{group.State}
	for _, member := range group.Members {
		found = append(found, *member.InstanceID)
	}
	same(w, found, []string{"Stable", name})
}

// Feature: administration
func TestTopicsConfigsAndGroupsAreAdministrated(t *testing.T) {
	w := newWorld(t, 2)
	admin := w.admin()
	_, err := admin.UpdatePartitions(w.ctx, 3, w.topic)
	w.must(err)
	topics, err := admin.ListTopics(w.ctx, w.topic)
	w.must(err)
	same(w, []int{len(topics[w.topic].Partitions)}, []int{3})

	hour := "3600000"
	_, err = admin.AlterTopicConfigs(w.ctx,
		[]kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &hour}}, w.topic)
	w.must(err)
	configs, err := admin.DescribeTopicConfigs(w.ctx, w.topic)
	w.must(err)
	for _, config := range configs[0].Configs {
		if config.Key == "retention.ms" {
			same(w, []string{config.MaybeValue()}, []string{hour})
		}
	}

	w.produce(w.client(kgo.RecordPartitioner(kgo.ManualPartitioner())), w.values("one", "two")...)
	ends, err := admin.ListEndOffsets(w.ctx, w.topic)
	w.must(err)
	same(w, []int64{ends[w.topic][0].Offset}, []int64{2})
	var offsets kadm.Offsets
	offsets.AddOffset(w.topic, 0, 1, -1)
	w.must(admin.CommitAllOffsets(w.ctx, w.topic, offsets))
	_, err = admin.DeleteRecords(w.ctx, offsets)
	w.must(err)
	same(w, valuesOf(w.poll(w.member(w.topic), 1)), []string{"two"})

	answers, err := admin.DeleteTopics(w.ctx, w.topic)
	w.must(err)
	w.must(answers.Error())
}
