//! Tests of the Rust crate `pulsar` with the broker, one fact per test.
//!
//! pytest builds this package once and runs each test against its broker (test_official_rust.py);
//! the comment `Feature: name, name` above a test names what it shows, for docs/clients.md.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::env;
use std::time::Duration;

use futures::future::{join_all, select_all};
use futures::StreamExt;
use pulsar::compression::{Compression, CompressionSnappy, CompressionZlib};
use pulsar::consumer::{DeadLetterPolicy, InitialPosition, Message};
use pulsar::message::proto::MessageIdData;
use pulsar::proto::{schema, Schema};
use pulsar::reader::Reader;
use pulsar::{
    producer, Authentication, Consumer, ConsumerBuilder, ConsumerOptions, Producer,
    ProducerOptions, Pulsar, SubType, TokioExecutor,
};
use tokio::time::timeout;

type Client = Pulsar<TokioExecutor>;
type Texts = Consumer<String, TokioExecutor>;

/// A limit for expected messages, even on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const NOTHING: Duration = Duration::from_millis(500);

/// The client of one test, with its own topic.
struct World {
    client: Client,
    topic: String,
}

async fn world(topic: &str) -> World {
    let url = env::var("SERVICE_URL").expect("SERVICE_URL");
    let client = Pulsar::builder(url, TokioExecutor).build().await.unwrap();
    World {
        client,
        topic: format!("persistent://public/default/rust-{topic}"),
    }
}

impl World {
    async fn producer(&self, options: ProducerOptions) -> Producer<TokioExecutor> {
        let builder = self.client.producer().with_topic(&self.topic);
        builder.with_options(options).build().await.unwrap()
    }

    fn consuming(&self, kind: SubType) -> ConsumerBuilder<TokioExecutor> {
        self.consuming_from(&[&self.topic], kind)
    }

    fn consuming_from(&self, topics: &[&str], kind: SubType) -> ConsumerBuilder<TokioExecutor> {
        let from = ConsumerOptions::default().with_initial_position(InitialPosition::Earliest);
        let builder = self.client.consumer().with_options(from);
        builder
            .with_topics(topics)
            .with_subscription("s")
            .with_subscription_type(kind)
    }

    async fn subscribe(&self, kind: SubType) -> Texts {
        self.consuming(kind).build().await.unwrap()
    }

    async fn publish(&self, values: &[String]) -> Vec<MessageIdData> {
        let mut producer = self.producer(ProducerOptions::default()).await;
        send(&mut producer, values).await
    }
}

/// Sends all values at once; returns their ids when all are durable.
async fn send(producer: &mut Producer<TokioExecutor>, values: &[String]) -> Vec<MessageIdData> {
    let mut receipts = Vec::new();
    for value in values {
        receipts.push(producer.send_non_blocking(value).await.unwrap());
    }
    if producer.options().batch_size.is_some() {
        producer.send_batch().await.unwrap();
    }
    let receipts = timeout(SOON, join_all(receipts)).await.unwrap();
    let ids = receipts.into_iter().map(|each| each.unwrap().message_id);
    ids.map(Option::unwrap).collect()
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number:03}")).collect()
}

async fn receive(consumer: &mut Texts) -> Message<String> {
    let message = timeout(SOON, consumer.next()).await.expect("no message");
    message.unwrap().unwrap()
}

fn text(message: &Message<String>) -> String {
    message.deserialize().unwrap()
}

/// Receives and acknowledges the next messages.
async fn take(consumer: &mut Texts, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    for _ in 0..count {
        let message = receive(consumer).await;
        consumer.ack(&message).await.unwrap();
        found.push(text(&message));
    }
    found
}

async fn nothing_more(consumer: &mut Texts) {
    let more = timeout(NOTHING, consumer.next()).await;
    assert!(more.is_err(), "one message too many");
}

/// Receives and acknowledges `count` messages; returns those of each consumer.
async fn divided(consumers: &mut [Texts], count: usize) -> Vec<Vec<Message<String>>> {
    let mut found: Vec<Vec<Message<String>>> = consumers.iter().map(|_| Vec::new()).collect();
    for _ in 0..count {
        let next = select_all(consumers.iter_mut().map(|consumer| consumer.next()));
        let (message, place, _) = timeout(SOON, next).await.expect("no message");
        let message = message.unwrap().unwrap();
        consumers[place].ack(&message).await.unwrap();
        found[place].push(message);
    }
    found
}

/// Feature: exclusive, batches, compression
#[tokio::test]
async fn an_exclusive_consumer_gets_all_in_order_however_it_was_packed() {
    let world = world("exclusive").await;
    let mut consumer = world.subscribe(SubType::Exclusive).await;
    let packings = [
        Compression::None,
        Compression::Zlib(CompressionZlib::default()),
        Compression::Snappy(CompressionSnappy::default()),
    ];
    for compression in packings {
        for batch_size in [None, Some(7)] {
            let mut producer = world
                .producer(ProducerOptions {
                    batch_size,
                    compression: Some(compression.clone()),
                    ..Default::default()
                })
                .await;
            send(&mut producer, &numbers(60)).await;
            assert_eq!(take(&mut consumer, 60).await, numbers(60));
        }
    }
    nothing_more(&mut consumer).await;
}

/// Feature: failover
#[tokio::test]
async fn a_failover_consumer_takes_over_where_the_active_one_stopped() {
    let world = world("failover").await;
    let named = |name: &str| world.consuming(SubType::Failover).with_consumer_name(name);
    let mut first: Texts = named("a").build().await.unwrap();
    let mut second: Texts = named("b").build().await.unwrap();
    world.publish(&numbers(30)).await;
    assert_eq!(take(&mut first, 10).await, numbers(30)[..10]);
    nothing_more(&mut second).await;
    first.close().await.unwrap();
    // Unacknowledged messages of the first consumer are redelivered. Acknowledged ones may be, too,
    // because the crate awaits neither an acknowledgement nor the closing of a consumer.
    let mut seen = BTreeSet::from_iter(numbers(10));
    while seen.len() < 30 {
        seen.extend(take(&mut second, 1).await);
    }
}

/// Feature: shared
#[tokio::test]
async fn shared_consumers_divide_the_messages() {
    let world = world("shared").await;
    let mut consumers = [
        world.subscribe(SubType::Shared).await,
        world.subscribe(SubType::Shared).await,
    ];
    world.publish(&numbers(60)).await;
    let found = divided(&mut consumers, 60).await;
    let seen: BTreeSet<String> = found.iter().flatten().map(text).collect();
    assert_eq!(seen, BTreeSet::from_iter(numbers(60)));
}

/// Feature: key_shared, keys and properties
#[tokio::test]
async fn a_key_stays_with_its_consumer_and_in_order() {
    let world = world("key-shared").await;
    let mut consumers = [
        world.subscribe(SubType::KeyShared).await,
        world.subscribe(SubType::KeyShared).await,
    ];
    let mut producer = world.producer(ProducerOptions::default()).await;
    for (place, payload) in numbers(60).into_iter().enumerate() {
        let message = producer::Message {
            payload: payload.into_bytes(),
            partition_key: Some(format!("k{}", place % 7)),
            properties: HashMap::from([("p".into(), "q".into())]),
            event_time: Some(1234),
            ..Default::default()
        };
        let receipt = producer.send_non_blocking(message).await.unwrap();
        timeout(SOON, receipt).await.unwrap().unwrap();
    }
    let mut owners = BTreeMap::new();
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    for (owner, messages) in divided(&mut consumers, 60).await.iter().enumerate() {
        for message in messages {
            let key = message.key().unwrap();
            assert_eq!(*owners.entry(key.clone()).or_insert(owner), owner);
            assert!(last.insert(key, text(message)) < Some(text(message)));
            assert_eq!(message.metadata().event_time, Some(1234));
            assert_eq!(message.metadata().properties[0].value, "q");
        }
    }
    assert_eq!(owners.len(), 7);
}

/// Feature: negative acknowledgement, dead letter topic
#[tokio::test]
async fn what_fails_too_often_goes_to_the_dead_letter_topic() {
    let world = world("dead").await;
    let letters_topic = format!("{}-letters", world.topic);
    let letters = world.consuming_from(&[&letters_topic], SubType::Exclusive);
    let mut letters: Texts = letters.build().await.unwrap();
    let policy = DeadLetterPolicy {
        max_redeliver_count: 2,
        dead_letter_topic: letters_topic.clone(),
    };
    let consuming = world.consuming(SubType::Shared);
    let mut consumer: Texts = consuming
        .with_dead_letter_policy(policy)
        .build()
        .await
        .unwrap();
    world.publish(&["poison".to_string()]).await;
    for count in 0..2 {
        let message = receive(&mut consumer).await;
        assert_eq!(text(&message), "poison", "delivery {count}");
        consumer.nack(&message).await.unwrap();
    }
    let letter = tokio::select! {
        letter = receive(&mut letters) => letter,
        more = receive(&mut consumer) => panic!("delivered again: {}", text(&more)),
    };
    assert_eq!(text(&letter), "poison");
}

/// Feature: cumulative acknowledgement
#[tokio::test]
async fn a_cumulative_acknowledgement_covers_all_before() {
    let world = world("cumulative").await;
    let mut consumer = world.subscribe(SubType::Exclusive).await;
    world.publish(&numbers(60)).await;
    let mut middle = receive(&mut consumer).await;
    for _ in 1..30 {
        middle = receive(&mut consumer).await;
    }
    consumer.cumulative_ack(&middle).await.unwrap();
    // Answered after the acknowledgement, on the same connection.
    consumer.get_last_message_id().await.unwrap();
    consumer.close().await.unwrap();
    let mut again = world.subscribe(SubType::Exclusive).await;
    assert_eq!(take(&mut again, 30).await, numbers(60)[30..]);
}

/// Feature: readers, last message id
#[tokio::test]
async fn a_reader_reads_from_the_beginning_and_from_a_message_on() {
    let world = world("readers").await;
    let ids = world.publish(&numbers(30)).await;
    let reading = |options: ConsumerOptions| {
        let builder = world.client.reader().with_topic(&world.topic);
        builder.with_options(options).into_reader()
    };
    let earliest = ConsumerOptions::default().with_initial_position(InitialPosition::Earliest);
    let mut reader: Reader<String, TokioExecutor> = reading(earliest).await.unwrap();
    for wanted in numbers(30) {
        let message = timeout(SOON, reader.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(text(&message), wanted);
    }
    let last = reader.get_last_message_id().await.unwrap();
    assert_eq!(last.entry_id, ids[29].entry_id);
    let from = ConsumerOptions::default().starting_on_message(ids[9].clone());
    let mut reader: Reader<String, TokioExecutor> = reading(from).await.unwrap();
    let message = timeout(SOON, reader.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(text(&message), numbers(30)[9]);
}

/// Feature: seek to a message
#[tokio::test]
async fn seeking_goes_back_to_a_message() {
    let world = world("seek").await;
    // On an exclusive subscription the client's new consumer would collide with its old one.
    let mut consumer = world.subscribe(SubType::Shared).await;
    let ids = world.publish(&numbers(30)).await;
    take(&mut consumer, 30).await;
    let client = world.client.clone();
    let sought = consumer.seek(None, Some(ids[9].clone()), None, client);
    timeout(SOON, sought).await.unwrap().unwrap();
    assert_eq!(take(&mut consumer, 21).await, numbers(30)[9..]);
}

/// Feature: partitioned topics
#[tokio::test]
async fn every_partition_is_used_and_read() {
    let world = world("partitioned").await; // pytest creates it, with four partitions
    let partitions = world.client.lookup_partitioned_topic_number(&world.topic);
    assert_eq!(partitions.await.unwrap(), 4);
    let mut consumer = world.subscribe(SubType::Exclusive).await;
    world.publish(&numbers(40)).await;
    let mut seen = BTreeSet::new();
    let mut used = BTreeSet::new();
    for _ in 0..40 {
        let message = receive(&mut consumer).await;
        consumer.ack(&message).await.unwrap();
        seen.insert(text(&message));
        used.insert(message.topic);
    }
    assert_eq!((seen.len(), used.len()), (40, 4));
}

/// Feature: several topics
#[tokio::test]
async fn several_topics_are_one_subscription() {
    let world = world("several").await;
    let topics = [format!("{}-1", world.topic), format!("{}-2", world.topic)];
    let mut wanted = BTreeSet::new();
    for topic in &topics {
        let builder = world.client.producer().with_topic(topic);
        send(&mut builder.build().await.unwrap(), &[topic.clone()]).await;
        wanted.insert(topic.clone());
    }
    let consuming = world.consuming_from(&[&topics[0], &topics[1]], SubType::Exclusive);
    let mut consumer: Texts = consuming.build().await.unwrap();
    assert_eq!(BTreeSet::from_iter(take(&mut consumer, 2).await), wanted);
}

/// Feature: delayed delivery
#[tokio::test]
async fn a_delayed_message_comes_when_it_is_due() {
    let world = world("delayed").await;
    let mut consumer = world.subscribe(SubType::Shared).await;
    let mut producer = world.producer(ProducerOptions::default()).await;
    let later = producer.create_message().with_content("later".to_string());
    let later = later.delay(Duration::from_secs(4)).unwrap();
    later.send_non_blocking().await.unwrap().await.unwrap();
    send(&mut producer, &["now".to_string()]).await;
    assert_eq!(take(&mut consumer, 2).await, ["now", "later"]);
}

/// Feature: JSON schema
#[tokio::test]
async fn a_schema_is_kept_and_another_is_refused() {
    let world = world("schema").await;
    let described = |kind: &str| ProducerOptions {
        schema: Some(Schema {
            name: "orders".into(),
            r#type: schema::Type::Json as i32,
            schema_data: format!(
                r#"{{"type":"record","name":"Order","fields":[{{"name":"n","type":"{kind}"}}]}}"#
            )
            .into_bytes(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut producer = world.producer(described("int")).await;
    let mut consumer = world.subscribe(SubType::Exclusive).await;
    send(&mut producer, &[r#"{"n":1}"#.to_string()]).await;
    let message = receive(&mut consumer).await;
    assert_eq!(message.metadata().schema_version, Some(vec![0; 8]));
    let builder = world.client.producer().with_topic(&world.topic);
    let refused = timeout(SOON, builder.with_options(described("string")).build()).await;
    let refused = refused.unwrap().err().expect("not refused").to_string();
    assert!(refused.contains("IncompatibleSchema"), "{refused}");
}

/// Feature: unsubscribing
#[tokio::test]
async fn unsubscribing_forgets_the_position() {
    let world = world("unsubscribing").await;
    let mut consumer = world.subscribe(SubType::Exclusive).await;
    world.publish(&numbers(5)).await;
    take(&mut consumer, 5).await;
    consumer.unsubscribe().await.unwrap();
    let mut again = world.subscribe(SubType::Exclusive).await;
    assert_eq!(take(&mut again, 5).await, numbers(5));
}

/// Feature: login by token
#[tokio::test]
async fn a_right_token_is_let_in_and_a_wrong_one_is_not() {
    let url = env::var("SECURED_URL").expect("SECURED_URL");
    let login = |token: String| {
        let shown = Authentication {
            name: "token".to_string(),
            data: token.into_bytes(),
        };
        Pulsar::builder(&url, TokioExecutor)
            .with_auth(shown)
            .build()
    };
    let right = env::var("TOKEN").expect("TOKEN");
    let client = timeout(SOON, login(right)).await.unwrap().unwrap();
    let topic = "persistent://public/default/rust-token";
    let mut producer = client.producer().with_topic(topic).build().await.unwrap();
    send(&mut producer, &["m".to_string()]).await;
    let refused = timeout(SOON, login("wrong".to_string()))
        .await
        .unwrap()
        .err();
    let refused = refused.expect("let in").to_string();
    assert!(refused.contains("Connection error"), "{refused}");
}
