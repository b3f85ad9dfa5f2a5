import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Sends orders with the official Java client: {@code Shop SERVICE_URL [BASKETS]}.
 *
 * <p>A basket of ten orders is one transaction, and there are two baskets a second. Every half minute
 * one basket stays open for ten seconds, so that the console shows messages waiting for it.
 */
public class Shop {
    private static final String[] ITEMS = {"lamp", "chair", "table", "shelf"};
    private static final int ORDERS = 10;
    private static final int ROUND = 60;
    private static final int OPEN_FOR = 20;

    private static long orders = 0;

    public static void main(String[] arguments) throws Exception {
        long baskets = arguments.length > 1 ? Long.parseLong(arguments[1]) : Long.MAX_VALUE;
        try (PulsarClient client =
                        PulsarClient.builder()
                                .serviceUrl(arguments[0])
                                .listenerName("compose")
                                .enableTransaction(true)
                                .build();
                Producer<String> producer =
                        client.newProducer(Schema.STRING).topic("orders").create()) {
            sell(client, producer, baskets);
        }
    }

    private static void sell(PulsarClient client, Producer<String> producer, long baskets)
            throws Exception {
        Transaction left = null;
        for (long basket = 1; basket <= baskets; basket++) {
            Transaction transaction =
                    client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
            for (int line = 0; line < ORDERS; line++) {
                order(producer, transaction);
            }
            if (basket % ROUND == 0) {
                left = transaction;
            } else {
                transaction.commit().get();
            }
            if (left != null && basket % ROUND == OPEN_FOR) {
                left.commit().get();
                left = null;
            }
            Thread.sleep(500);
        }
        if (left != null) {
            left.commit().get();
        }
    }

    private static void order(Producer<String> producer, Transaction transaction) throws Exception {
        orders++;
        String item = ITEMS[(int) (orders % ITEMS.length)];
        long cents = 1000 + orders * 37 % 9000;
        producer.newMessage(transaction)
                .key("customer-" + orders % 100)
                .value(
                        String.format(
                                "{\"order\": %d, \"item\": \"%s\", \"cents\": %d}",
                                orders, item, cents))
                .send();
    }
}
