package trident.kept;

import java.io.Serializable;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.spark.Partition;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.ExecutorCacheTaskLocation;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.storage.BlockManager;
import scala.collection.Iterator;
import scala.collection.Iterator$;
import scala.collection.immutable.Seq;
import scala.collection.immutable.Seq$;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;

/**
 * A Spark partition for each shard, with one row: the shard's number. A shard's tasks prefer one executor, whose host
 * has the stores of the shard; {@code spark.locality.wait} bounds how long they wait for it.
 *
 * <p>The executor stays the shard's as long as it lives and has no more shards than its part. Shards without one are
 * dealt to those that have the fewest, in the order of their hosts' names: after a restart on the same hosts they are
 * where they were. A host whose executor comes back gets those shards again that it had first: it has their stores.
 */
public final class ShardsRDD extends RDD<InternalRow> {
  private final int count;
  private transient String[] homes; // used by the scheduler's thread alone, as the hosts that shards had first
  private transient String[] hosts;

  @SuppressWarnings({"unchecked", "rawtypes"})
  ShardsRDD(SparkContext context, int count) {
    super(context, (Seq) Seq$.MODULE$.empty(), ClassTag$.MODULE$.apply(InternalRow.class));
    this.count = count;
    homes = new String[count];
    hosts = new String[count];
  }

  @Override
  public Partition[] getPartitions() {
    Partition[] found = new Partition[count];
    for (int i = 0; i < count; i++) {
      found[i] = new Shard(i);
    }
    return found;
  }

  @Override
  public Iterator<InternalRow> compute(Partition split, TaskContext context) {
    return Iterator$.MODULE$.single(new GenericInternalRow(new Object[] {split.index()}));
  }

  @Override
  public Seq<String> getPreferredLocations(Partition split) {
    if (split.index() == 0) { // it is asked for first, and all of a job are asked for together
      homes = count > 1 ? dealt(homes, hosts, executors()) : homes;
    }
    String home = homes[split.index()];
    return CollectionConverters.asScala(home == null ? List.<String>of() : List.of(home)).toSeq();
  }

  private static List<String> executors() {
    BlockManager here = SparkEnv.get().blockManager();
    return CollectionConverters.asJava(here.master().getPeers(here.blockManagerId())).stream()
        .map(one -> new ExecutorCacheTaskLocation(one.host(), one.executorId()).toString())
        .sorted()
        .collect(Collectors.toList());
  }

  /**
   * The executor of each shard; null: there is none.
   *
   * @param hosts that shards had first; of shards that had none they are put in
   */
  public static String[] dealt(String[] before, String[] hosts, List<String> executors) {
    String[] homes = new String[before.length];
    if (executors.isEmpty()) {
      return homes;
    }
    int most = (homes.length + executors.size() - 1) / executors.size();
    Map<String, Integer> shards = new HashMap<>();
    executors.forEach(executor -> shards.put(executor, 0));
    for (boolean first : new boolean[] {true, false}) {
      for (int i = 0; i < homes.length; i++) {
        boolean there = homes[i] == null && shards.getOrDefault(before[i], most) < most;
        if (there && (!first || hostOf(before[i]).equals(hosts[i]))) {
          homes[i] = before[i];
          shards.merge(homes[i], 1, Integer::sum);
        }
      }
    }
    for (int i = 0; i < homes.length; i++) {
      if (homes[i] == null) {
        String host = hosts[i];
        Comparator<String> order = Comparator.comparing(one -> !(hostOf(one).equals(host) && shards.get(one) < most));
        homes[i] = executors.stream().min(order.thenComparing(shards::get)).get(); // the first of them
        shards.merge(homes[i], 1, Integer::sum);
        hosts[i] = host == null ? hostOf(homes[i]) : host;
      }
    }
    return homes;
  }

  private static String hostOf(String executor) {
    return executor.substring(executor.indexOf('_') + 1, executor.lastIndexOf('_'));
  }

  private static final class Shard implements Partition, Serializable {
    private final int index;

    Shard(int index) {
      this.index = index;
    }

    @Override
    public int index() {
      return index;
    }

    // Scala's trait asks for them.
    @Override
    public int hashCode() {
      return index;
    }

    @Override
    public boolean equals(Object other) {
      return other instanceof Shard && ((Shard) other).index == index;
    }
  }
}
